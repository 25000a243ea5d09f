import static java.time.OffsetDateTime.now;

import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.ServiceBusMessageState;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.IntStream;

/** Queues: sending, receiving, settling, locks, time. */
final class QueueCases {
    static void addTo(Map<String, Conformance.Case> cases) {
        cases.put("send_receive_complete", QueueCases::sendReceiveComplete);
        cases.put("system_properties", QueueCases::systemProperties);
        cases.put("batch_send", QueueCases::batchSend);
        cases.put("drain_500", QueueCases::drain500);
        cases.put("abandon_with_properties", QueueCases::abandonWithProperties);
        cases.put("max_delivery_count", QueueCases::maxDeliveryCount);
        cases.put("defer_receive_by_sequence_number", QueueCases::deferAndReceive);
        cases.put("dead_letter", QueueCases::deadLetter);
        cases.put("peek", QueueCases::peek);
        cases.put("schedule_and_cancel", QueueCases::scheduleAndCancel);
        cases.put("scheduled_by_property", QueueCases::scheduledByProperty);
        cases.put("renew_lock", QueueCases::renewLock);
        cases.put("lock_expiry", QueueCases::lockExpiry);
        cases.put("receive_and_delete", QueueCases::receiveAndDelete);
        cases.put("streaming_receive", QueueCases::streamingReceive);
        cases.put("ttl_dead_letter", QueueCases::ttlDeadLetter);
        cases.put("ttl_of_entity_discards", QueueCases::ttlOfEntityDiscards);
        cases.put("duplicate_detection", QueueCases::duplicateDetection);
        cases.put("auto_forward", QueueCases::autoForward);
    }

    private static void sendReceiveComplete(Bench bench) {
        String queue = bench.queue();
        bench.send(queue, "hello wörld");
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        ServiceBusReceivedMessage message = Bench.one(receiver);
        Bench.equal("body", message.getBody().toString(), "hello wörld");
        Bench.equal("delivery count", message.getDeliveryCount(), 0L);
        receiver.complete(message);
        Bench.nothingMore(receiver);
    }

    private static void systemProperties(Bench bench) {
        String queue = bench.queue();
        OffsetDateTime before = now();
        bench.send(queue, Bench.text("one").setMessageId("id-1").setCorrelationId("corr-1").setSubject("a subject")
            .setContentType("text/plain").setTo("somewhere").setReplyTo("back").setReplyToSessionId("back-session")
            .setPartitionKey("pk").setTimeToLive(Duration.ofMinutes(1)), Bench.text("two"));
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        List<ServiceBusReceivedMessage> got = Bench.receive(receiver, 2);
        ServiceBusReceivedMessage first = got.get(0);
        ServiceBusReceivedMessage second = got.get(1);
        Bench.equal("message id", first.getMessageId(), "id-1");
        Bench.equal("correlation id", first.getCorrelationId(), "corr-1");
        Bench.equal("subject", first.getSubject(), "a subject");
        Bench.equal("content type", first.getContentType(), "text/plain");
        Bench.equal("to", first.getTo(), "somewhere");
        Bench.equal("reply to", first.getReplyTo(), "back");
        Bench.equal("reply to session", first.getReplyToSessionId(), "back-session");
        Bench.equal("partition key", first.getPartitionKey(), "pk");
        Bench.equal("time to live", first.getTimeToLive(), Duration.ofMinutes(1));
        Duration tolerance = Duration.ofSeconds(8);
        Bench.check(Bench.near(first.getEnqueuedTime(), before, tolerance), "enqueued at " + first.getEnqueuedTime());
        Bench.check(Bench.near(first.getLockedUntil(), before.plusMinutes(1), tolerance),
            "locked until " + first.getLockedUntil());
        Bench.check(Bench.near(first.getExpiresAt(), before.plusMinutes(1), tolerance),
            "expires at " + first.getExpiresAt());
        Bench.check(second.getSequenceNumber() > first.getSequenceNumber(), "sequence numbers grow");
        Bench.equal("state", first.getState(), ServiceBusMessageState.ACTIVE);
        Bench.check(first.getLockToken() != null, "no lock token");
        Bench.check(second.getMessageId() != null, "the service gives an id to a message without one");
        got.forEach(receiver::complete);
    }

    private static void batchSend(Bench bench) {
        String queue = bench.queue();
        ServiceBusSenderClient sender = bench.sender(queue);
        ServiceBusMessageBatch batch = sender.createMessageBatch();
        for (int i = 0; i < 20; i++) {
            ServiceBusMessage message = Bench.text("" + i).setMessageId("b" + i);
            message.getApplicationProperties().put("i", i);
            Bench.check(batch.tryAddMessage(message), "does not fit");
        }
        sender.sendMessages(batch);
        sender.sendMessages(List.of(Bench.text("20"), Bench.text("21")));
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        List<ServiceBusReceivedMessage> got = Bench.receive(receiver, 22);
        Bench.equal("bodies", Bench.bodies(got), IntStream.range(0, 22).mapToObj(i -> "" + i).toList());
        Bench.equal("id", got.get(7).getMessageId(), "b7");
        Bench.equal("property", got.get(7).getApplicationProperties().get("i"), 7);
        got.forEach(receiver::complete);
        Bench.nothingMore(receiver);
    }

    private static void drain500(Bench bench) {
        String queue = bench.queue();
        bench.sender(queue).sendMessages(IntStream.range(0, 500).mapToObj(i -> Bench.text("" + i)).toList());
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        Set<String> seen = new HashSet<>();
        while (seen.size() < 500) {
            List<ServiceBusReceivedMessage> some = receiver.receiveMessages(100, Duration.ofSeconds(5)).stream().toList();
            Bench.check(!some.isEmpty(), "stopped after " + seen.size());
            some.forEach(receiver::complete);
            seen.addAll(Bench.bodies(some));
        }
        Bench.equal("left", bench.admin.getQueueRuntimeProperties(queue).getTotalMessageCount(), 0L);
    }

    private static void abandonWithProperties(Bench bench) {
        String queue = bench.queue();
        ServiceBusMessage sent = Bench.text("x");
        sent.getApplicationProperties().putAll(Map.of("kept", "yes", "changed", 1));
        bench.send(queue, sent);
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        ServiceBusReceivedMessage first = Bench.one(receiver);
        receiver.abandon(first, new AbandonOptions().setPropertiesToModify(Map.of("changed", 2, "added", "new")));
        ServiceBusReceivedMessage second = Bench.one(receiver);
        Bench.equal("delivery count", second.getDeliveryCount(), 1L);
        Bench.equal("sequence number", second.getSequenceNumber(), first.getSequenceNumber());
        Bench.equal("properties", Map.copyOf(second.getApplicationProperties()),
            Map.of("kept", "yes", "changed", 2, "added", "new"));
        receiver.complete(second);
    }

    private static void maxDeliveryCount(Bench bench) {
        String queue = bench.queue(new CreateQueueOptions().setMaxDeliveryCount(2));
        bench.send(queue, "poison");
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        for (int i = 0; i < 2; i++) {
            receiver.abandon(Bench.one(receiver));
        }
        ServiceBusReceiverClient dead = bench.deadLetters(queue);
        ServiceBusReceivedMessage message = Bench.one(dead);
        Bench.equal("reason", message.getDeadLetterReason(), "MaxDeliveryCountExceeded");
        dead.complete(message);
        Bench.nothingMore(receiver);
    }

    private static void deferAndReceive(Bench bench) {
        String queue = bench.queue();
        bench.send(queue, "a", "b");
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        List<ServiceBusReceivedMessage> got = Bench.receive(receiver, 2);
        long number = got.get(0).getSequenceNumber();
        receiver.defer(got.get(0), new DeferOptions().setPropertiesToModify(Map.of("why", "later")));
        receiver.complete(got.get(1));
        Bench.nothingMore(receiver);
        Bench.equal("state", receiver.peekMessage(0).getState(), ServiceBusMessageState.DEFERRED);
        ServiceBusReceivedMessage deferred = receiver.receiveDeferredMessage(number);
        Bench.equal("body", deferred.getBody().toString(), "a");
        Bench.equal("property", deferred.getApplicationProperties().get("why"), "later");
        receiver.complete(deferred);
        // The SDK makes an empty list of the service's "message not found", and then misses its last element.
        Bench.fails(ServiceBusFailureReason.GENERAL_ERROR, () -> receiver.receiveDeferredMessage(number));
    }

    private static void deadLetter(Bench bench) {
        String queue = bench.queue();
        ServiceBusMessage sent = Bench.text("bad");
        sent.getApplicationProperties().put("n", 1);
        bench.send(queue, sent);
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        receiver.deadLetter(Bench.one(receiver), new DeadLetterOptions().setDeadLetterReason("broken")
            .setDeadLetterErrorDescription("it does not parse").setPropertiesToModify(Map.of("extra", "seen")));
        ServiceBusReceiverClient dead = bench.deadLetters(queue);
        ServiceBusReceivedMessage buried = Bench.one(dead);
        Bench.equal("body", buried.getBody().toString(), "bad");
        Bench.equal("reason", buried.getDeadLetterReason(), "broken");
        Bench.equal("description", buried.getDeadLetterErrorDescription(), "it does not parse");
        Bench.equal("property", buried.getApplicationProperties().get("n"), 1);
        Bench.equal("extra", buried.getApplicationProperties().get("extra"), "seen");
        dead.complete(buried);
        Bench.nothingMore(dead);
    }

    private static void peek(Bench bench) {
        String queue = bench.queue();
        bench.send(queue, "0", "1", "2", "3", "4");
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        Bench.equal("first", Bench.bodies(receiver.peekMessages(2).stream().toList()), List.of("0", "1"));
        List<ServiceBusReceivedMessage> rest = receiver.peekMessages(10).stream().toList();
        Bench.equal("rest", Bench.bodies(rest), List.of("2", "3", "4"));
        long number = rest.get(1).getSequenceNumber();
        Bench.equal("again", Bench.bodies(receiver.peekMessages(2, number).stream().toList()), List.of("3", "4"));
        Bench.equal("end", Bench.bodies(receiver.peekMessages(5).stream().toList()), List.of());
        Bench.equal("delivery count", Bench.receive(receiver, 5).get(0).getDeliveryCount(), 0L);
    }

    private static void scheduleAndCancel(Bench bench) {
        String queue = bench.queue();
        ServiceBusSenderClient sender = bench.sender(queue);
        OffsetDateTime at = now(ZoneOffset.UTC).plusNanos(2_500_000_000L);
        sender.scheduleMessage(Bench.text("stays"), at);
        long number = sender.scheduleMessages(List.of(Bench.text("goes")), at).iterator().next();
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        Bench.equal("states", receiver.peekMessages(5).stream().map(ServiceBusReceivedMessage::getState).toList(),
            List.of(ServiceBusMessageState.SCHEDULED, ServiceBusMessageState.SCHEDULED));
        Bench.equal("scheduled", bench.admin.getQueueRuntimeProperties(queue).getScheduledMessageCount(), 2);
        sender.cancelScheduledMessage(number);
        Bench.nothingMore(receiver);
        ServiceBusReceivedMessage message = Bench.one(receiver);
        Bench.equal("body", message.getBody().toString(), "stays");
        Bench.check(now().isAfter(at.minusNanos(200_000_000)), "arrived too early");
        receiver.complete(message);
        Bench.nothingMore(receiver);
    }

    private static void scheduledByProperty(Bench bench) {
        String queue = bench.queue();
        OffsetDateTime at = now(ZoneOffset.UTC).plusSeconds(3);
        bench.send(queue, Bench.text("later").setScheduledEnqueueTime(at));
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        Bench.nothingMore(receiver);
        ServiceBusReceivedMessage message = Bench.one(receiver);
        Bench.check(now().isAfter(at.minusNanos(200_000_000)), "arrived too early");
        receiver.complete(message);
    }

    private static CreateQueueOptions shortLock() {
        return new CreateQueueOptions().setLockDuration(Duration.ofSeconds(5));
    }

    private static void renewLock(Bench bench) throws InterruptedException {
        String queue = bench.queue(shortLock());
        bench.send(queue, "slow");
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        ServiceBusReceivedMessage message = Bench.one(receiver);
        OffsetDateTime before = message.getLockedUntil();
        Thread.sleep(3_000);
        OffsetDateTime until = receiver.renewMessageLock(message);
        Bench.check(until.isAfter(before.plusNanos(1_500_000_000)), until + " is not later than " + before);
        Thread.sleep(3_500);
        receiver.complete(message);
        Bench.nothingMore(receiver);
    }

    private static void lockExpiry(Bench bench) {
        String queue = bench.queue(shortLock());
        bench.send(queue, "slow");
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        ServiceBusReceivedMessage first = Bench.one(receiver);
        ServiceBusReceivedMessage second = Bench.one(receiver);
        Bench.equal("delivery count", second.getDeliveryCount(), 1L);
        Bench.check(!first.getLockToken().equals(second.getLockToken()), "the lock token is the same");
        Bench.fails(ServiceBusFailureReason.MESSAGE_LOCK_LOST, () -> {
            receiver.complete(first);
            return "completed";
        });
        receiver.complete(second);
        Bench.nothingMore(receiver);
    }

    private static void receiveAndDelete(Bench bench) throws InterruptedException {
        String queue = bench.queue();
        bench.send(queue, "1", "2");
        Bench.equal("bodies", Bench.bodies(Bench.receive(bench.deleting(queue), 2)), List.of("1", "2"));
        bench.eventuallyEmpty(queue);
    }

    private static void streamingReceive(Bench bench) throws InterruptedException {
        String queue = bench.queue();
        bench.sender(queue).sendMessages(IntStream.range(0, 30).mapToObj(i -> Bench.text("" + i)).toList());
        Queue<String> seen = new ConcurrentLinkedQueue<>();
        Queue<String> errors = new ConcurrentLinkedQueue<>();
        ServiceBusProcessorClient processor = bench.keep(bench.shared().processor().queueName(queue).maxConcurrentCalls(5)
            .processMessage(context -> {
                String body = context.getMessage().getBody().toString();
                seen.add(body);
                if (body.equals("7") && context.getMessage().getDeliveryCount() == 0) {
                    throw new IllegalStateException("again, please");
                }
            })
            .processError(context -> errors.add("" + context.getException()))
            .buildProcessorClient());
        processor.start();
        long end = System.nanoTime() + Duration.ofSeconds(15).toNanos();
        while (seen.size() < 31 && System.nanoTime() < end) {
            Thread.sleep(100);
        }
        bench.eventuallyEmpty(queue);
        processor.stop();
        Bench.equal("deliveries", seen.size(), 31);
        Bench.equal("messages", new HashSet<>(seen).size(), 30);
        Bench.check(errors.size() == 1 && errors.peek().contains("again, please"), "errors: " + errors);
    }

    private static void ttlDeadLetter(Bench bench) {
        String queue = bench.queue(new CreateQueueOptions().setDeadLetteringOnMessageExpiration(true));
        bench.send(queue, Bench.text("brief").setTimeToLive(Duration.ofSeconds(1)));
        ServiceBusReceiverClient dead = bench.deadLetters(queue);
        ServiceBusReceivedMessage message = Bench.one(dead);
        Bench.equal("body", message.getBody().toString(), "brief");
        Bench.equal("reason", message.getDeadLetterReason(), "TTLExpiredException");
        dead.complete(message);
    }

    private static void ttlOfEntityDiscards(Bench bench) throws InterruptedException {
        String queue = bench.queue(new CreateQueueOptions().setDefaultMessageTimeToLive(Duration.ofSeconds(1)));
        bench.send(queue, "brief");
        Thread.sleep(1_500);
        Bench.nothingMore(bench.receiver(queue));
        Bench.nothingMore(bench.deadLetters(queue));
    }

    private static void duplicateDetection(Bench bench) {
        String queue = bench.queue(new CreateQueueOptions().setDuplicateDetectionRequired(true)
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(1)));
        bench.send(queue, Bench.text("first").setMessageId("same"), Bench.text("again").setMessageId("same"));
        bench.sender(queue).sendMessages(List.of(
            Bench.text("batched").setMessageId("same"), Bench.text("other").setMessageId("different")));
        ServiceBusReceiverClient receiver = bench.deleting(queue);
        Bench.equal("bodies", Bench.bodies(Bench.receive(receiver, 2)), List.of("first", "other"));
        Bench.nothingMore(receiver);
    }

    private static void autoForward(Bench bench) {
        String target = bench.queue("target", new CreateQueueOptions());
        String source = bench.queue("source", new CreateQueueOptions().setForwardTo(target));
        ServiceBusMessage sent = Bench.text("onward");
        sent.getApplicationProperties().put("n", 1);
        bench.send(source, sent);
        ServiceBusReceiverClient receiver = bench.receiver(target);
        ServiceBusReceivedMessage message = Bench.one(receiver);
        Bench.equal("body", message.getBody().toString(), "onward");
        Bench.equal("property", message.getApplicationProperties().get("n"), 1);
        receiver.complete(message);
    }

    private QueueCases() {
    }
}
