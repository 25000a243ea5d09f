import static java.time.OffsetDateTime.now;

import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;

/** Sessions: accepting, order, state, locks. */
final class SessionCases {
    static void addTo(Map<String, Conformance.Case> cases) {
        cases.put("session_named", SessionCases::named);
        cases.put("session_next", SessionCases::next);
        cases.put("session_order", SessionCases::order);
        cases.put("session_state", SessionCases::state);
        cases.put("session_renew_lock", SessionCases::renewLock);
        cases.put("session_lock_lost", SessionCases::lockLost);
        cases.put("session_next_timeout", SessionCases::nextTimeout);
        cases.put("session_cannot_be_locked", SessionCases::cannotBeLocked);
        cases.put("session_rules_of_the_queue", SessionCases::rulesOfTheQueue);
        cases.put("session_defer_and_peek", SessionCases::deferAndPeek);
    }

    private static ServiceBusMessage inSession(String session, String body) {
        return Bench.text(body).setSessionId(session);
    }

    private static String sessionQueue(Bench bench) {
        return bench.queue(new CreateQueueOptions().setSessionRequired(true));
    }

    private static String shortSessionQueue(Bench bench) {
        return bench.queue(new CreateQueueOptions().setSessionRequired(true).setLockDuration(Duration.ofSeconds(5)));
    }

    private static void named(Bench bench) {
        String queue = sessionQueue(bench);
        bench.send(queue, inSession("a", "1"), inSession("b", "2"));
        ServiceBusReceiverClient receiver = bench.accept(queue, "b");
        Bench.equal("session", receiver.getSessionId(), "b");
        ServiceBusReceivedMessage message = Bench.one(receiver);
        Bench.equal("body", message.getBody().toString(), "2");
        Bench.equal("session of the message", message.getSessionId(), "b");
        receiver.complete(message);
        Bench.nothingMore(receiver);
    }

    private static void next(Bench bench) {
        String queue = sessionQueue(bench);
        bench.send(queue, inSession("a", "1"), inSession("b", "2"));
        ServiceBusSessionReceiverClient sessions = bench.sessions(queue);
        Map<String, String> seen = new TreeMap<>();
        for (int i = 0; i < 2; i++) {
            try (ServiceBusReceiverClient receiver = sessions.acceptNextSession()) {
                ServiceBusReceivedMessage message = Bench.one(receiver);
                seen.put(receiver.getSessionId(), message.getBody().toString());
                receiver.complete(message);
            }
        }
        Bench.equal("seen", seen, Map.of("a", "1", "b", "2"));
    }

    private static void order(Bench bench) {
        String queue = sessionQueue(bench);
        bench.sender(queue).sendMessages(
            IntStream.range(0, 20).mapToObj(i -> inSession(i % 2 == 0 ? "even" : "odd", "" + i)).toList());
        for (int parity : List.of(1, 0)) {
            ServiceBusReceiverClient receiver = bench.accept(queue, parity == 0 ? "even" : "odd");
            List<ServiceBusReceivedMessage> got = Bench.receive(receiver, 10);
            Bench.equal("order", Bench.bodies(got), IntStream.range(0, 10).mapToObj(i -> "" + (2 * i + parity)).toList());
            got.forEach(receiver::complete);
        }
    }

    private static void state(Bench bench) {
        String queue = sessionQueue(bench);
        bench.send(queue, inSession("s", "1"));
        byte[] state = {0, 1, 2, (byte) 255};
        try (ServiceBusReceiverClient receiver = bench.sessions(queue).acceptSession("s")) {
            byte[] none = receiver.getSessionState();
            Bench.check(none == null || none.length == 0, "there is a state already");
            receiver.setSessionState(state);
            Bench.check(java.util.Arrays.equals(receiver.getSessionState(), state), "the state differs");
        }
        // On a connection of its own: the SDK may take the link that it is closing, of the same name, for the new one.
        ServiceBusReceiverClient again = bench.keep(bench.keep(
            Bench.builder(Bench.CONNECTION_STRING, Duration.ofSeconds(8), 1).sessionReceiver().queueName(queue).buildClient())
            .acceptSession("s"));
        Bench.check(java.util.Arrays.equals(again.getSessionState(), state), "the state was not kept");
        again.setSessionState(null);
        byte[] cleared = again.getSessionState();
        Bench.check(cleared == null || cleared.length == 0, "the state was not cleared");
    }

    private static void renewLock(Bench bench) throws InterruptedException {
        String queue = shortSessionQueue(bench);
        bench.send(queue, inSession("s", "1"));
        ServiceBusReceiverClient receiver = bench.accept(queue, "s");
        ServiceBusReceivedMessage message = Bench.one(receiver);
        Thread.sleep(3_000);
        OffsetDateTime until = receiver.renewSessionLock();
        Bench.check(Bench.near(until, now().plusSeconds(5), Duration.ofSeconds(2)), "locked until " + until);
        Thread.sleep(3_500);
        receiver.complete(message);
    }

    private static void lockLost(Bench bench) throws InterruptedException {
        String queue = shortSessionQueue(bench);
        bench.send(queue, inSession("s", "1"));
        ServiceBusReceiverClient receiver = bench.accept(queue, "s");
        ServiceBusReceivedMessage message = Bench.one(receiver);
        Thread.sleep(6_500);
        Throwable error = Bench.thrownBy(() -> {
            receiver.complete(message);
            return "completed";
        });
        Bench.check(error instanceof ServiceBusException, "want a ServiceBusException, got " + error);
        receiver.close();
        ServiceBusReceiverClient again = bench.accept(queue, "s");
        again.complete(Bench.one(again));
    }

    private static void nextTimeout(Bench bench) {
        String queue = sessionQueue(bench);
        ServiceBusSessionReceiverClient sessions = bench.keep(Bench.builder(Bench.CONNECTION_STRING, Duration.ofSeconds(3), 0)
            .sessionReceiver().queueName(queue).buildClient());
        long started = System.nanoTime();
        Throwable error = Bench.thrownBy(sessions::acceptNextSession);
        double took = (System.nanoTime() - started) / 1e9;
        boolean timedOut = error.getCause() instanceof TimeoutException
            || error instanceof ServiceBusException e && e.getReason().equals(ServiceBusFailureReason.SERVICE_TIMEOUT);
        Bench.check(timedOut, "want a time-out, got " + error + " <- " + error.getCause());
        Bench.check(took > 1.5 && took < 8, "took " + took + " s");
    }

    private static void cannotBeLocked(Bench bench) {
        String queue = sessionQueue(bench);
        ServiceBusSessionReceiverClient other = bench.keep(Bench.builder(Bench.CONNECTION_STRING, Duration.ofSeconds(8), 0)
            .sessionReceiver().queueName(queue).buildClient());
        ServiceBusReceiverClient holder = bench.sessions(queue).acceptSession("s");
        Bench.fails(AmqpErrorCondition.SESSION_CANNOT_BE_LOCKED, () -> other.acceptSession("s"));
        holder.close();
        Bench.equal("session", bench.keep(other.acceptSession("s")).getSessionId(), "s");
    }

    private static void rulesOfTheQueue(Bench bench) {
        String queue = sessionQueue(bench);
        Bench.thrownBy(() -> {
            bench.sender(queue).sendMessage(Bench.text("without a session id"));
            return "accepted";
        });
        long started = System.nanoTime();
        Bench.thrownBy(() -> bench.receiver(queue).receiveMessages(1, Duration.ofSeconds(8)).stream().toList());
        Bench.check(System.nanoTime() - started < 7_000_000_000L, "a receiver without a session was not refused");
    }

    private static void deferAndPeek(Bench bench) {
        String queue = sessionQueue(bench);
        bench.send(queue, inSession("s", "a"), inSession("s", "b"), inSession("other", "c"));
        ServiceBusReceiverClient receiver = bench.accept(queue, "s");
        Bench.equal("peeked", Bench.bodies(receiver.peekMessages(10).stream().toList()), List.of("a", "b"));
        List<ServiceBusReceivedMessage> got = Bench.receive(receiver, 2);
        receiver.defer(got.get(0));
        receiver.deadLetter(got.get(1), new DeadLetterOptions().setDeadLetterReason("r").setDeadLetterErrorDescription("d"));
        receiver.complete(receiver.receiveDeferredMessage(got.get(0).getSequenceNumber()));
        ServiceBusReceiverClient dead = bench.deadLetters(queue);
        ServiceBusReceivedMessage buried = Bench.one(dead);
        Bench.equal("session", buried.getSessionId(), "s");
        dead.complete(buried);
    }

    private SessionCases() {
    }
}
