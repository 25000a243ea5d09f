import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.core.exception.HttpResponseException;
import com.azure.core.http.HttpPipelineCallContext;
import com.azure.core.http.HttpPipelineNextPolicy;
import com.azure.core.http.HttpPipelineNextSyncPolicy;
import com.azure.core.http.HttpResponse;
import com.azure.core.http.policy.FixedDelayOptions;
import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.http.policy.RetryOptions;
import com.azure.core.util.UrlBuilder;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.RuleAction;
import com.azure.messaging.servicebus.administration.models.RuleFilter;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.net.URI;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedDeque;
import reactor.core.publisher.Mono;

/** What one case has to itself: clients, an administration client and entity names nobody else uses. */
final class Bench implements AutoCloseable {
    static final String CONNECTION_STRING = System.getenv("LOCALBUS");

    final String prefix;
    final ServiceBusAdministrationClient admin;
    private final ConcurrentLinkedDeque<AutoCloseable> open = new ConcurrentLinkedDeque<>();
    private final ServiceBusClientBuilder builder;

    Bench(String name) {
        prefix = "java-" + name.replace('_', '-') + "-" + UUID.randomUUID().toString().substring(0, 6);
        admin = administration(CONNECTION_STRING);
        builder = builder(CONNECTION_STRING, Duration.ofSeconds(10), 1);
    }

    static ServiceBusClientBuilder builder(String connectionString, Duration tryTimeout, int retries) {
        return new ServiceBusClientBuilder()
            .connectionString(connectionString)
            .retryOptions(new AmqpRetryOptions()
                .setTryTimeout(tryTimeout)
                .setMaxRetries(retries)
                .setDelay(Duration.ofMillis(100)));
    }

    static String withWrongKey() {
        return CONNECTION_STRING.replaceAll("SharedAccessKey=[^;]*",
            "SharedAccessKey=BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
    }

    static ServiceBusAdministrationClient administration(String connectionString) {
        return new ServiceBusAdministrationClientBuilder()
            .connectionString(connectionString)
            .retryOptions(new RetryOptions(new FixedDelayOptions(0, Duration.ofMillis(100))))
            .addPolicy(new PortPolicy(port()))
            .buildClient();
    }

    private static int port() {
        for (String part : CONNECTION_STRING.split(";")) {
            if (part.startsWith("Endpoint=")) {
                return URI.create(part.substring("Endpoint=".length())).getPort();
            }
        }
        throw new IllegalArgumentException("no endpoint in LOCALBUS");
    }

    /** The builder keeps only the host of the endpoint; the port goes back in here. */
    private record PortPolicy(int port) implements HttpPipelinePolicy {
        private void apply(HttpPipelineCallContext context) {
            UrlBuilder url = UrlBuilder.parse(context.getHttpRequest().getUrl()).setPort(port);
            context.getHttpRequest().setUrl(url.toString());
        }

        @Override
        public Mono<HttpResponse> process(HttpPipelineCallContext context, HttpPipelineNextPolicy next) {
            apply(context);
            return next.process();
        }

        @Override
        public HttpResponse processSync(HttpPipelineCallContext context, HttpPipelineNextSyncPolicy next) {
            apply(context);
            return next.processSync();
        }
    }

    // ---------------------------------------------------------------- entities

    String queue() {
        return queue("q", new CreateQueueOptions());
    }

    String queue(CreateQueueOptions options) {
        return queue("q", options);
    }

    String queue(String suffix, CreateQueueOptions options) {
        String name = prefix + "-" + suffix;
        admin.createQueue(name, options);
        return name;
    }

    String topic(String... subscriptions) {
        String name = prefix + "-t";
        admin.createTopic(name);
        for (String subscription : subscriptions) {
            admin.createSubscription(name, subscription);
        }
        return name;
    }

    void subscription(String topic, String name, RuleFilter filter, RuleAction action) {
        CreateRuleOptions rule = new CreateRuleOptions(filter);
        if (action != null) {
            rule.setAction(action);
        }
        admin.createSubscription(topic, name, "only", new CreateSubscriptionOptions(), rule);
    }

    // ---------------------------------------------------------------- clients

    <T extends AutoCloseable> T keep(T client) {
        open.addFirst(client);
        return client;
    }

    ServiceBusClientBuilder shared() {
        return builder;
    }

    ServiceBusSenderClient sender(String entity) {
        return keep(builder.sender().queueName(entity).buildClient());
    }

    ServiceBusSenderClient topicSender(String topic) {
        return keep(builder.sender().topicName(topic).buildClient());
    }

    ServiceBusReceiverClient receiver(String queue) {
        return receiver(queue, ServiceBusReceiveMode.PEEK_LOCK, SubQueue.NONE);
    }

    ServiceBusReceiverClient deleting(String queue) {
        return receiver(queue, ServiceBusReceiveMode.RECEIVE_AND_DELETE, SubQueue.NONE);
    }

    ServiceBusReceiverClient deadLetters(String queue) {
        return receiver(queue, ServiceBusReceiveMode.PEEK_LOCK, SubQueue.DEAD_LETTER_QUEUE);
    }

    private ServiceBusReceiverClient receiver(String queue, ServiceBusReceiveMode mode, SubQueue part) {
        return keep(builder.receiver().queueName(queue).receiveMode(mode).subQueue(part)
            .maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    ServiceBusReceiverClient subscriptionReceiver(String topic, String name, ServiceBusReceiveMode mode, SubQueue part) {
        return keep(builder.receiver().topicName(topic).subscriptionName(name).receiveMode(mode).subQueue(part)
            .maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    ServiceBusSessionReceiverClient sessions(String queue) {
        return keep(builder.sessionReceiver().queueName(queue).maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    ServiceBusReceiverClient accept(String queue, String session) {
        return keep(sessions(queue).acceptSession(session));
    }

    @Override
    public void close() {
        Thread closing = new Thread(() -> open.forEach(client -> {
            try {
                client.close();
            } catch (Exception e) {
                // what a case leaves behind is not what it is judged by
            }
        }));
        closing.setDaemon(true);
        closing.start();
        try {
            closing.join(5_000);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    // ---------------------------------------------------------------- messages

    void send(String entity, ServiceBusMessage... messages) {
        ServiceBusSenderClient sender = sender(entity);
        for (ServiceBusMessage message : messages) {
            sender.sendMessage(message);
        }
    }

    void send(String entity, String... bodies) {
        send(entity, Arrays.stream(bodies).map(ServiceBusMessage::new).toArray(ServiceBusMessage[]::new));
    }

    /** Exactly {@code count} messages, however many receives that takes. */
    static List<ServiceBusReceivedMessage> receive(ServiceBusReceiverClient receiver, int count) {
        List<ServiceBusReceivedMessage> messages = new ArrayList<>();
        long end = System.nanoTime() + Duration.ofSeconds(12).toNanos();
        while (messages.size() < count && System.nanoTime() < end) {
            Duration wait = Duration.ofNanos(Math.max(100_000_000, end - System.nanoTime()));
            receiver.receiveMessages(count - messages.size(), wait).forEach(messages::add);
        }
        check(messages.size() == count, "received " + messages.size() + " of " + count + " messages");
        return messages;
    }

    static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
        return receive(receiver, 1).get(0);
    }

    static void nothingMore(ServiceBusReceiverClient receiver) {
        List<ServiceBusReceivedMessage> messages =
            receiver.receiveMessages(1, Duration.ofMillis(800)).stream().toList();
        check(messages.isEmpty(), "unexpected message " + bodies(messages));
    }

    /** Empties a subscription and returns the sorted bodies. */
    List<String> drain(String topic, String name) {
        ServiceBusReceiverClient receiver =
            subscriptionReceiver(topic, name, ServiceBusReceiveMode.RECEIVE_AND_DELETE, SubQueue.NONE);
        List<String> seen = new ArrayList<>();
        for (;;) {
            List<String> more = bodies(receiver.receiveMessages(20, Duration.ofMillis(1_200)).stream().toList());
            if (more.isEmpty()) {
                return seen.stream().sorted().toList();
            }
            seen.addAll(more);
        }
    }

    void eventuallyEmpty(String queue) throws InterruptedException {
        long end = System.nanoTime() + Duration.ofSeconds(10).toNanos();
        while (admin.getQueueRuntimeProperties(queue).getTotalMessageCount() != 0) {
            check(System.nanoTime() < end, queue + " is not empty");
            Thread.sleep(200);
        }
    }

    static List<String> bodies(List<ServiceBusReceivedMessage> messages) {
        return messages.stream().map(message -> message.getBody().toString()).toList();
    }

    static ServiceBusMessage text(String body) {
        return new ServiceBusMessage(body);
    }

    // ---------------------------------------------------------------- expectations

    static void check(boolean condition, String problem) {
        if (!condition) {
            throw new AssertionError(problem);
        }
    }

    static void equal(String what, Object got, Object want) {
        check(Objects.equals(got, want), what + ": got " + got + ", want " + want);
    }

    static boolean near(OffsetDateTime at, OffsetDateTime base, Duration tolerance) {
        return Duration.between(base, at).abs().compareTo(tolerance) <= 0;
    }

    static Throwable thrownBy(Callable<?> call) {
        try {
            Object value = call.call();
            throw new AssertionError("no error, but " + value);
        } catch (Exception e) {
            return e;
        }
    }

    static void fails(ServiceBusFailureReason reason, Callable<?> call) {
        Throwable error = thrownBy(call);
        check(error instanceof ServiceBusException, "want a ServiceBusException " + reason + ", got " + error);
        ServiceBusFailureReason got = ((ServiceBusException) error).getReason();
        check(reason.equals(got), "want " + reason + ", got " + got + ": " + error.getMessage());
    }

    /** The service's own condition: accepting a session throws it as it is, a synchronous receiver wraps it. */
    static void fails(AmqpErrorCondition condition, Callable<?> call) {
        Throwable error = thrownBy(call);
        while (!(error instanceof AmqpException) && error.getCause() != null) {
            error = error.getCause();
        }
        check(error instanceof AmqpException, "want an AmqpException " + condition + ", got " + error);
        equal("condition", ((AmqpException) error).getErrorCondition(), condition);
    }

    static void failsWith(Class<? extends HttpResponseException> type, int status, Callable<?> call) {
        Throwable error = thrownBy(call);
        check(type.isInstance(error), "want a " + type.getSimpleName() + ", got " + error);
        if (error instanceof HttpResponseException response && response.getResponse() != null) {
            equal("status", response.getResponse().getStatusCode(), status);
        }
    }
}
