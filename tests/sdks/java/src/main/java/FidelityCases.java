import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.models.AmqpAnnotatedMessage;
import com.azure.core.amqp.models.AmqpMessageBody;
import com.azure.core.amqp.models.AmqpMessageBodyType;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import java.net.URI;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.qpid.proton.amqp.Binary;
import org.apache.qpid.proton.amqp.Decimal128;
import org.apache.qpid.proton.amqp.Decimal64;
import org.apache.qpid.proton.amqp.Symbol;
import org.apache.qpid.proton.amqp.UnsignedByte;
import org.apache.qpid.proton.amqp.UnsignedInteger;
import org.apache.qpid.proton.amqp.UnsignedLong;
import org.apache.qpid.proton.amqp.UnsignedShort;

/** What is received is what was sent; what is refused is refused with the SDK's own error. */
final class FidelityCases {
    static void addTo(Map<String, Conformance.Case> cases) {
        cases.put("property_types", FidelityCases::propertyTypes);
        cases.put("body_types", FidelityCases::bodyTypes);
        cases.put("large_message", FidelityCases::largeMessage);
        cases.put("message_too_large", FidelityCases::messageTooLarge);
        cases.put("missing_queue", FidelityCases::missingQueue);
        cases.put("wrong_key", FidelityCases::wrongKey);
        cases.put("entity_disabled", FidelityCases::entityDisabled);
        if (System.getenv("LOCALBUS_INTEROP") != null) {
            cases.put("interop_with_python", FidelityCases::interopWithPython);
        }
    }

    private static void propertyTypes(Bench bench) {
        String queue = bench.queue();
        Map<String, Object> sent = new HashMap<>();
        sent.put("text", "grüße ✓");
        sent.put("empty", "");
        sent.put("yes", true);
        sent.put("no", false);
        sent.put("nothing", null);
        sent.put("byte", (byte) -8);
        sent.put("short", (short) -300);
        sent.put("int", Integer.MIN_VALUE);
        sent.put("smallInt", 5);
        sent.put("long", Long.MIN_VALUE);
        sent.put("smallLong", 5L);
        sent.put("ubyte", UnsignedByte.valueOf((byte) 200));
        sent.put("ushort", UnsignedShort.valueOf((short) 60000));
        sent.put("uint", UnsignedInteger.valueOf(4294967295L));
        sent.put("ulong", UnsignedLong.valueOf("18446744073709551615"));
        sent.put("float", 1.5f);
        sent.put("double", Math.PI);
        sent.put("char", 'ß');
        sent.put("uuid", UUID.fromString("00112233-4455-6677-8899-aabbccddeeff"));
        sent.put("date", new Date(1_770_091_506_789L));
        sent.put("symbol", Symbol.valueOf("sym"));
        sent.put("bytes", new Binary(new byte[] {0, 1, (byte) 254, (byte) 255}));
        sent.put("decimal64", new Decimal64(0x2230000000000001L));
        sent.put("decimal128", new Decimal128(0x3040000000000000L, 7L));
        sent.put("offsetDateTime", OffsetDateTime.of(2026, 2, 3, 4, 5, 6, 789_000_000, ZoneOffset.UTC));
        sent.put("duration", Duration.ofMillis(90_061_001));
        sent.put("uri", URI.create("https://example.com/a?b=c"));
        ServiceBusMessage message = Bench.text("x");
        message.getApplicationProperties().putAll(sent);
        bench.send(queue, message);
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        ServiceBusReceivedMessage received = Bench.one(receiver);
        Map<String, Object> got = received.getApplicationProperties();
        sent.forEach((key, value) -> {
            Bench.check(got.containsKey(key), key + " is missing");
            Object found = got.get(key);
            String type = found == null ? "null" : found.getClass().getSimpleName();
            Bench.equal(key + " (" + type + ")", found, value);
        });
        Bench.equal("number of properties", got.size(), sent.size());
        receiver.complete(received);
    }

    private static void bodyTypes(Bench bench) {
        String queue = bench.queue();
        ServiceBusMessage rich = new ServiceBusMessage(AmqpMessageBody.fromData(new byte[] {0, (byte) 255, 1}));
        AmqpAnnotatedMessage raw = rich.getRawAmqpMessage();
        // No footer: the SDK writes its keys as strings and cannot read them as such.
        raw.getHeader().setPriority((short) 7).setDurable(true);
        raw.getProperties().setGroupSequence(4L).setContentEncoding("gzip").setUserId(new byte[] {1, 2});
        bench.send(queue,
            new ServiceBusMessage(AmqpMessageBody.fromValue("a value")),
            new ServiceBusMessage(AmqpMessageBody.fromValue(Map.of("a", 1L))),
            new ServiceBusMessage(AmqpMessageBody.fromSequence(List.of("x", 2L, true))),
            rich);
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        List<ServiceBusReceivedMessage> got = Bench.receive(receiver, 4);
        List<AmqpMessageBody> bodies = got.stream().map(m -> m.getRawAmqpMessage().getBody()).toList();
        Bench.equal("types", bodies.stream().map(AmqpMessageBody::getBodyType).toList(), List.of(
            AmqpMessageBodyType.VALUE, AmqpMessageBodyType.VALUE, AmqpMessageBodyType.SEQUENCE, AmqpMessageBodyType.DATA));
        Bench.equal("value", bodies.get(0).getValue(), "a value");
        Bench.equal("map", bodies.get(1).getValue(), Map.of("a", 1L));
        Bench.equal("sequence", bodies.get(2).getSequence(), List.of("x", 2L, true));
        Bench.check(Arrays.equals(bodies.get(3).getFirstData(), new byte[] {0, (byte) 255, 1}), "the data differ");
        AmqpAnnotatedMessage last = got.get(3).getRawAmqpMessage();
        Bench.equal("priority", last.getHeader().getPriority(), (short) 7);
        Bench.equal("durable", last.getHeader().isDurable(), true);
        Bench.equal("group sequence", last.getProperties().getGroupSequence(), 4L);
        Bench.equal("content encoding", last.getProperties().getContentEncoding(), "gzip");
        Bench.check(Arrays.equals(last.getProperties().getUserId(), new byte[] {1, 2}), "the user id differs");
        got.forEach(receiver::complete);
    }

    private static void interopWithPython(Bench bench) {
        String prefix = System.getenv("LOCALBUS_INTEROP");
        ServiceBusReceiverClient receiver = bench.receiver(prefix + "-in");
        ServiceBusReceivedMessage message = Bench.one(receiver);
        bench.send(prefix + "-out", new ServiceBusMessage(message));
        receiver.complete(message);
    }

    private static void largeMessage(Bench bench) {
        String queue = bench.queue();
        byte[] body = "0123456789abcdef".repeat(200 * 64).getBytes();
        bench.send(queue, new ServiceBusMessage(body));
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        Bench.check(Arrays.equals(receiver.peekMessage().getBody().toBytes(), body), "the peeked body differs");
        ServiceBusReceivedMessage message = Bench.one(receiver);
        Bench.check(Arrays.equals(message.getBody().toBytes(), body), "the received body differs");
        receiver.complete(message);
    }

    private static void messageTooLarge(Bench bench) {
        String queue = bench.queue();
        ServiceBusSenderClient sender = bench.sender(queue);
        ServiceBusMessageBatch batch = sender.createMessageBatch();
        int limit = batch.getMaxSizeInBytes();
        Bench.check(limit > 200 * 1024 && limit <= 100 * 1024 * 1024, "the limit is " + limit);
        byte[] most = new byte[limit / 4 * 3];
        Bench.check(batch.tryAddMessage(new ServiceBusMessage(most)), "does not fit into the batch");
        Bench.check(!batch.tryAddMessage(new ServiceBusMessage(most)), "fits into the batch");
        Bench.fails(ServiceBusFailureReason.MESSAGE_SIZE_EXCEEDED, () -> {
            sender.sendMessage(new ServiceBusMessage(new byte[limit + 1024]));
            return "sent";
        });
        sender.sendMessage(Bench.text("still fine"));
        Bench.equal("body", Bench.one(bench.receiver(queue)).getBody().toString(), "still fine");
    }

    private static void missingQueue(Bench bench) {
        String absent = bench.prefix + "-absent";
        ServiceBusFailureReason notFound = ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND;
        Bench.fails(notFound, () -> {
            bench.sender(absent).sendMessage(Bench.text("x"));
            return "sent";
        });
        Bench.fails(notFound, () -> bench.receiver(absent).peekMessage());
        Bench.fails(AmqpErrorCondition.NOT_FOUND, () -> bench.receiver(absent).receiveMessages(1, Duration.ofSeconds(8)).stream().toList());
    }

    private static void wrongKey(Bench bench) {
        String queue = bench.queue();
        ServiceBusClientBuilder builder = Bench.builder(Bench.withWrongKey(), Duration.ofSeconds(8), 0);
        ServiceBusSenderClient sender = bench.keep(builder.sender().queueName(queue).buildClient());
        Bench.fails(ServiceBusFailureReason.UNAUTHORIZED, () -> {
            sender.sendMessage(Bench.text("x"));
            return "sent";
        });
        ServiceBusReceiverClient receiver = bench.keep(builder.receiver().queueName(queue).buildClient());
        Bench.fails(ServiceBusFailureReason.UNAUTHORIZED, receiver::peekMessage);
    }

    private static void entityDisabled(Bench bench) {
        String queue = bench.queue(new CreateQueueOptions().setStatus(EntityStatus.SEND_DISABLED));
        ServiceBusSenderClient sender = bench.keep(Bench.builder(Bench.CONNECTION_STRING, Duration.ofSeconds(8), 0)
            .sender().queueName(queue).buildClient());
        Bench.fails(ServiceBusFailureReason.MESSAGING_ENTITY_DISABLED, () -> {
            sender.sendMessage(Bench.text("x"));
            return "sent";
        });
        bench.admin.updateQueue(bench.admin.getQueue(queue).setStatus(EntityStatus.ACTIVE));
        bench.send(queue, "y");
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        receiver.complete(Bench.one(receiver));
    }

    private FidelityCases() {
    }
}
