import com.azure.core.exception.ClientAuthenticationException;
import com.azure.core.exception.HttpResponseException;
import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.NamespaceProperties;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.administration.models.QueueRuntimeProperties;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.SubscriptionProperties;
import com.azure.messaging.servicebus.administration.models.TopicProperties;
import com.azure.messaging.servicebus.administration.models.TopicRuntimeProperties;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** The administration client. */
final class AdministrationCases {
    static void addTo(Map<String, Conformance.Case> cases) {
        cases.put("admin_queue", AdministrationCases::queue);
        cases.put("admin_topic", AdministrationCases::topic);
        cases.put("admin_subscription", AdministrationCases::subscription);
        cases.put("admin_rule", AdministrationCases::rule);
        cases.put("admin_runtime_counts", AdministrationCases::runtimeCounts);
        cases.put("admin_not_found", AdministrationCases::notFound);
        cases.put("admin_already_exists", AdministrationCases::alreadyExists);
        cases.put("admin_namespace", AdministrationCases::namespace);
        cases.put("admin_wrong_key", AdministrationCases::wrongKey);
    }

    private static void queue(Bench bench) {
        ServiceBusAdministrationClient admin = bench.admin;
        String name = bench.prefix + "-q";
        Bench.equal("exists at first", admin.getQueueExists(name), false);
        QueueProperties created = admin.createQueue(name, new CreateQueueOptions()
            .setLockDuration(Duration.ofSeconds(45)).setMaxDeliveryCount(7).setSessionRequired(true)
            .setDefaultMessageTimeToLive(Duration.ofDays(2)).setDeadLetteringOnMessageExpiration(true)
            .setUserMetadata("notes & <more>"));
        Bench.equal("name", created.getName(), name);
        Bench.equal("exists", admin.getQueueExists(name), true);
        QueueProperties got = admin.getQueue(name);
        Bench.equal("lock duration", got.getLockDuration(), Duration.ofSeconds(45));
        Bench.equal("max delivery count", got.getMaxDeliveryCount(), 7);
        Bench.equal("requires session", got.isSessionRequired(), true);
        Bench.equal("time to live", got.getDefaultMessageTimeToLive(), Duration.ofDays(2));
        Bench.equal("dead-lettering", got.isDeadLetteringOnMessageExpiration(), true);
        Bench.equal("metadata", got.getUserMetadata(), "notes & <more>");
        Bench.equal("status", got.getStatus(), EntityStatus.ACTIVE);
        Bench.equal("duplicate detection", got.isDuplicateDetectionRequired(), false);
        QueueProperties updated = admin.updateQueue(got.setMaxDeliveryCount(9).setLockDuration(Duration.ofMinutes(1)));
        Bench.equal("updated", updated.getMaxDeliveryCount(), 9);
        Bench.equal("updated lock", admin.getQueue(name).getLockDuration(), Duration.ofMinutes(1));
        Bench.check(admin.listQueues().stream().anyMatch(queue -> queue.getName().equals(name)), "it is not listed");
        admin.deleteQueue(name);
        Bench.equal("exists at last", admin.getQueueExists(name), false);
    }

    private static void topic(Bench bench) {
        ServiceBusAdministrationClient admin = bench.admin;
        String name = bench.prefix + "-t";
        Bench.equal("exists at first", admin.getTopicExists(name), false);
        admin.createTopic(name, new CreateTopicOptions().setDefaultMessageTimeToLive(Duration.ofHours(3))
            .setDuplicateDetectionRequired(true).setUserMetadata("t"));
        TopicProperties got = admin.getTopic(name);
        Bench.equal("time to live", got.getDefaultMessageTimeToLive(), Duration.ofHours(3));
        Bench.equal("duplicate detection", got.isDuplicateDetectionRequired(), true);
        Bench.equal("updated", admin.updateTopic(got.setUserMetadata("changed")).getUserMetadata(), "changed");
        Bench.check(admin.listTopics().stream().anyMatch(topic -> topic.getName().equals(name)), "it is not listed");
        admin.createSubscription(name, "s");
        TopicRuntimeProperties runtime = admin.getTopicRuntimeProperties(name);
        Bench.equal("subscriptions", runtime.getSubscriptionCount(), 1);
        Bench.check(Bench.near(runtime.getCreatedAt(), OffsetDateTime.now(), Duration.ofMinutes(1)),
            "created at " + runtime.getCreatedAt());
        admin.deleteTopic(name);
        Bench.equal("exists at last", admin.getTopicExists(name), false);
    }

    private static void subscription(Bench bench) {
        ServiceBusAdministrationClient admin = bench.admin;
        String topic = bench.topic();
        Bench.equal("exists at first", admin.getSubscriptionExists(topic, "s"), false);
        admin.createSubscription(topic, "s", new CreateSubscriptionOptions()
            .setLockDuration(Duration.ofSeconds(30)).setMaxDeliveryCount(4).setSessionRequired(true));
        SubscriptionProperties got = admin.getSubscription(topic, "s");
        Bench.equal("topic", got.getTopicName(), topic);
        Bench.equal("name", got.getSubscriptionName(), "s");
        Bench.equal("lock duration", got.getLockDuration(), Duration.ofSeconds(30));
        Bench.equal("max delivery count", got.getMaxDeliveryCount(), 4);
        Bench.equal("requires session", got.isSessionRequired(), true);
        Bench.equal("updated", admin.updateSubscription(got.setMaxDeliveryCount(5)).getMaxDeliveryCount(), 5);
        admin.createSubscription(topic, "s2");
        Bench.equal("subscriptions", admin.listSubscriptions(topic).stream()
            .map(SubscriptionProperties::getSubscriptionName).sorted().toList(), List.of("s", "s2"));
        admin.deleteSubscription(topic, "s");
        Bench.equal("exists at last", admin.getSubscriptionExists(topic, "s"), false);
    }

    private static void rule(Bench bench) {
        ServiceBusAdministrationClient admin = bench.admin;
        String topic = bench.topic("s");
        SqlRuleFilter sql = new SqlRuleFilter("a = @x AND b < 'q'");
        sql.getParameters().put("@x", "five"); // the SDK writes every value as a string
        admin.createRule(topic, "sql", "s", new CreateRuleOptions(sql).setAction(new SqlRuleAction("SET c = 1")));
        CorrelationRuleFilter correlation = new CorrelationRuleFilter().setLabel("sub");
        correlation.getProperties().putAll(Map.of("s", "t", "n", "4"));
        admin.createRule(topic, "corr", "s", new CreateRuleOptions(correlation));
        RuleProperties gotSql = admin.getRule(topic, "s", "sql");
        Bench.equal("name", gotSql.getName(), "sql");
        Bench.equal("filter", ((SqlRuleFilter) gotSql.getFilter()).getSqlExpression(), "a = @x AND b < 'q'");
        Bench.equal("parameter", ((SqlRuleFilter) gotSql.getFilter()).getParameters().get("@x"), "five");
        Bench.equal("action", ((SqlRuleAction) gotSql.getAction()).getSqlExpression(), "SET c = 1");
        CorrelationRuleFilter got = (CorrelationRuleFilter) admin.getRule(topic, "s", "corr").getFilter();
        Bench.equal("label", got.getLabel(), "sub");
        Bench.equal("properties", Map.copyOf(got.getProperties()), Map.copyOf(correlation.getProperties()));
        RuleProperties updated = admin.updateRule(topic, "s", gotSql.setFilter(new SqlRuleFilter("a = 6")));
        Bench.equal("updated", ((SqlRuleFilter) updated.getFilter()).getSqlExpression(), "a = 6");
        Bench.equal("rules", admin.listRules(topic, "s").stream().map(RuleProperties::getName).sorted().toList(),
            List.of("$Default", "corr", "sql"));
        admin.deleteRule(topic, "s", "sql");
        Bench.equal("rules left", admin.listRules(topic, "s").stream().map(RuleProperties::getName).sorted().toList(),
            List.of("$Default", "corr"));
        Bench.failsWith(HttpResponseException.class, 400, () -> admin.createRule(topic, "bad", "s",
            new CreateRuleOptions(new SqlRuleFilter("this is not = = sql"))));
    }

    private static void runtimeCounts(Bench bench) {
        String queue = bench.queue();
        bench.send(queue, "1", "2", "3", "4");
        bench.sender(queue).scheduleMessage(Bench.text("later"), OffsetDateTime.now().plusHours(1));
        ServiceBusReceiverClient receiver = bench.receiver(queue);
        receiver.deadLetter(Bench.one(receiver));
        QueueRuntimeProperties counts = bench.admin.getQueueRuntimeProperties(queue);
        Bench.equal("active", counts.getActiveMessageCount(), 3);
        Bench.equal("dead-letter", counts.getDeadLetterMessageCount(), 1);
        Bench.equal("scheduled", counts.getScheduledMessageCount(), 1);
        Bench.equal("transfer", counts.getTransferMessageCount(), 0);
        Bench.equal("total", counts.getTotalMessageCount(), 5L);
        Bench.check(counts.getSizeInBytes() > 0, "no size");
        Bench.check(Bench.near(counts.getCreatedAt(), OffsetDateTime.now(), Duration.ofMinutes(1)),
            "created at " + counts.getCreatedAt());
        String topic = bench.topic("s1");
        bench.subscription(topic, "s2", new FalseRuleFilter(), null);
        bench.topicSender(topic).sendMessages(List.of(Bench.text("1"), Bench.text("2")));
        Bench.equal("s1", bench.admin.getSubscriptionRuntimeProperties(topic, "s1").getActiveMessageCount(), 2);
        Bench.equal("s2", bench.admin.getSubscriptionRuntimeProperties(topic, "s2").getTotalMessageCount(), 0L);
    }

    private static void notFound(Bench bench) {
        ServiceBusAdministrationClient admin = bench.admin;
        String absent = bench.prefix + "-absent";
        String topic = bench.topic("s");
        List<Callable<?>> calls = List.of(
            () -> admin.getQueue(absent),
            () -> admin.getTopic(absent),
            () -> admin.getQueueRuntimeProperties(absent),
            () -> admin.getSubscription(topic, absent),
            () -> admin.getRule(topic, "s", absent),
            () -> {
                admin.deleteQueue(absent);
                return "deleted";
            });
        for (Callable<?> call : calls) {
            Throwable error = Bench.thrownBy(call);
            Bench.check(error instanceof ResourceNotFoundException, "want a ResourceNotFoundException, got " + error);
        }
    }

    private static void alreadyExists(Bench bench) {
        String queue = bench.queue();
        String topic = bench.topic("s");
        List<Callable<?>> calls = List.of(
            () -> bench.admin.createQueue(queue),
            () -> bench.admin.createTopic(topic),
            () -> bench.admin.createSubscription(topic, "s"),
            () -> bench.admin.createRule(topic, "s", "$Default"));
        for (Callable<?> call : calls) {
            Bench.failsWith(ResourceExistsException.class, 409, call);
        }
    }

    private static void namespace(Bench bench) {
        NamespaceProperties properties = bench.admin.getNamespaceProperties();
        Bench.equal("name", properties.getName(), "contoso");
        Bench.check(List.of("Basic", "Standard", "Premium").contains("" + properties.getMessagingSku()),
            "SKU " + properties.getMessagingSku());
        Bench.check(properties.getCreatedTime() != null, "no time of creation");
    }

    private static void wrongKey(Bench bench) {
        Bench.failsWith(ClientAuthenticationException.class, 401,
            () -> Bench.administration(Bench.withWrongKey()).getQueue(bench.prefix + "-q"));
    }

    private AdministrationCases() {
    }
}
