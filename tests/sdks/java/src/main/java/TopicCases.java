import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;

/** Topics: subscriptions, rules, filters, actions. */
final class TopicCases {
    static void addTo(Map<String, Conformance.Case> cases) {
        cases.put("topic_default_rule", TopicCases::defaultRule);
        cases.put("topic_sql_filter", TopicCases::sqlFilter);
        cases.put("topic_correlation_filter", TopicCases::correlationFilter);
        cases.put("topic_sql_action", TopicCases::sqlAction);
        cases.put("topic_rule_manager", TopicCases::ruleManager);
        cases.put("topic_subscription_dead_letter", TopicCases::subscriptionDeadLetter);
        cases.put("topic_sessions_and_schedule", TopicCases::sessionsAndSchedule);
    }

    private static ServiceBusMessage message(String body, Map<String, Object> properties) {
        ServiceBusMessage message = Bench.text(body);
        message.getApplicationProperties().putAll(properties);
        return message;
    }

    private static void publish(Bench bench, String topic, ServiceBusMessage... messages) {
        ServiceBusSenderClient sender = bench.topicSender(topic);
        for (ServiceBusMessage message : messages) {
            sender.sendMessage(message);
        }
    }

    private static void defaultRule(Bench bench) {
        String topic = bench.topic("s1", "s2");
        publish(bench, topic, Bench.text("a"), Bench.text("b"));
        for (String subscription : List.of("s1", "s2")) {
            Bench.equal(subscription, bench.drain(topic, subscription), List.of("a", "b"));
        }
        Bench.equal("rules", bench.admin.listRules(topic, "s1").stream().map(RuleProperties::getName).toList(),
            List.of("$Default"));
    }

    private static void sqlFilter(Bench bench) {
        String topic = bench.topic();
        // The SDK writes the values of parameters, and of a correlation filter's properties, as strings, whatever they are.
        SqlRuleFilter parameter = new SqlRuleFilter("region = @where");
        parameter.getParameters().put("@where", "EU");
        bench.subscription(topic, "big", new SqlRuleFilter("amount > 100 AND region = 'EU'"), null);
        bench.subscription(topic, "like",
            new SqlRuleFilter("sys.Label LIKE 'order%' AND region IN ('US', 'EU')"), null);
        bench.subscription(topic, "absent", new SqlRuleFilter("NOT EXISTS(amount) OR amount IS NULL"), null);
        bench.subscription(topic, "parameter", parameter, null);
        bench.subscription(topic, "never", new FalseRuleFilter(), null);
        bench.subscription(topic, "always", new TrueRuleFilter(), null);
        publish(bench, topic,
            message("a", Map.of("amount", 150, "region", "EU")).setSubject("order.new"),
            message("b", Map.of("amount", 50L, "region", "EU")).setSubject("order.old"),
            message("c", Map.of("amount", 100.5, "region", "US")).setSubject("refund"),
            message("d", Map.of("region", "US")).setSubject("order.x"));
        Bench.equal("big", bench.drain(topic, "big"), List.of("a"));
        Bench.equal("like", bench.drain(topic, "like"), List.of("a", "b", "d"));
        Bench.equal("absent", bench.drain(topic, "absent"), List.of("d"));
        Bench.equal("parameter", bench.drain(topic, "parameter"), List.of("a", "b"));
        Bench.equal("never", bench.drain(topic, "never"), List.of());
        Bench.equal("always", bench.drain(topic, "always"), List.of("a", "b", "c", "d"));
    }

    private static void correlationFilter(Bench bench) {
        String topic = bench.topic();
        CorrelationRuleFilter many = new CorrelationRuleFilter().setLabel("s").setContentType("t");
        many.getProperties().putAll(Map.of("colour", "red", "size", "large"));
        bench.subscription(topic, "id", new CorrelationRuleFilter("c1"), null);
        bench.subscription(topic, "many", many, null);
        publish(bench, topic,
            Bench.text("a").setCorrelationId("c1"),
            message("b", Map.of("colour", "red", "size", "large")).setCorrelationId("c2").setSubject("s").setContentType("t"),
            message("c", Map.of("colour", "blue", "size", "large")).setCorrelationId("c1").setSubject("s").setContentType("t"));
        Bench.equal("id", bench.drain(topic, "id"), List.of("a", "c"));
        Bench.equal("many", bench.drain(topic, "many"), List.of("b"));
    }

    private static void sqlAction(Bench bench) {
        String topic = bench.topic();
        bench.subscription(topic, "s", new SqlRuleFilter("1=1"),
            new SqlRuleAction("SET quantity = quantity * 2; SET sys.Label = 'changed'; REMOVE secret"));
        publish(bench, topic, message("a", Map.of("quantity", 21L, "secret", "x")).setSubject("before"));
        ServiceBusReceiverClient receiver =
            bench.subscriptionReceiver(topic, "s", ServiceBusReceiveMode.PEEK_LOCK, SubQueue.NONE);
        ServiceBusReceivedMessage got = Bench.one(receiver);
        Bench.equal("subject", got.getSubject(), "changed");
        Bench.equal("properties", got.getApplicationProperties().keySet().stream().sorted().toList(),
            List.of("RuleName", "quantity"));
        Bench.equal("quantity", ((Number) got.getApplicationProperties().get("quantity")).longValue(), 42L);
        receiver.complete(got);
    }

    private static void ruleManager(Bench bench) {
        String topic = bench.topic("s");
        ServiceBusRuleManagerClient manager =
            bench.keep(bench.shared().ruleManager().topicName(topic).subscriptionName("s").buildClient());
        Bench.equal("at first", manager.listRules().stream().map(RuleProperties::getName).toList(), List.of("$Default"));
        manager.deleteRule("$Default");
        manager.createRule("sql", new CreateRuleOptions(new SqlRuleFilter("n = 1"))
            .setAction(new SqlRuleAction("SET tagged = 'yes'")));
        CorrelationRuleFilter correlation = new CorrelationRuleFilter().setLabel("two");
        correlation.getProperties().put("k", "v");
        manager.createRule("correlation", new CreateRuleOptions(correlation));
        Map<String, RuleProperties> rules = manager.listRules().stream()
            .collect(Collectors.toMap(RuleProperties::getName, Function.identity()));
        Bench.equal("rules", rules.keySet().stream().sorted().toList(), List.of("correlation", "sql"));
        Bench.equal("filter", ((SqlRuleFilter) rules.get("sql").getFilter()).getSqlExpression(), "n = 1");
        Bench.equal("action", ((SqlRuleAction) rules.get("sql").getAction()).getSqlExpression(), "SET tagged = 'yes'");
        CorrelationRuleFilter got = (CorrelationRuleFilter) rules.get("correlation").getFilter();
        Bench.equal("label", got.getLabel(), "two");
        Bench.equal("property", got.getProperties().get("k"), "v");
        publish(bench, topic, message("a", Map.of("n", 1)), message("b", Map.of("n", 2)),
            message("c", Map.of("k", "v")).setSubject("two"));
        ServiceBusReceiverClient receiver =
            bench.subscriptionReceiver(topic, "s", ServiceBusReceiveMode.RECEIVE_AND_DELETE, SubQueue.NONE);
        List<ServiceBusReceivedMessage> messages = Bench.receive(receiver, 2);
        Bench.equal("bodies", Bench.bodies(messages), List.of("a", "c"));
        Bench.equal("tagged", messages.get(0).getApplicationProperties().get("tagged"), "yes");
        Bench.fails(ServiceBusFailureReason.MESSAGING_ENTITY_ALREADY_EXISTS, () -> {
            manager.createRule("sql", new CreateRuleOptions(new SqlRuleFilter("1=1")));
            return "created twice";
        });
        Bench.fails(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, () -> {
            manager.deleteRule("absent");
            return "deleted from nowhere";
        });
    }

    private static void subscriptionDeadLetter(Bench bench) {
        String topic = bench.topic("s1", "s2");
        publish(bench, topic, Bench.text("x"));
        ServiceBusReceiverClient receiver =
            bench.subscriptionReceiver(topic, "s1", ServiceBusReceiveMode.PEEK_LOCK, SubQueue.NONE);
        receiver.deadLetter(Bench.one(receiver),
            new DeadLetterOptions().setDeadLetterReason("r").setDeadLetterErrorDescription("d"));
        ServiceBusReceiverClient dead =
            bench.subscriptionReceiver(topic, "s1", ServiceBusReceiveMode.PEEK_LOCK, SubQueue.DEAD_LETTER_QUEUE);
        ServiceBusReceivedMessage buried = Bench.one(dead);
        Bench.equal("reason", buried.getDeadLetterReason(), "r");
        dead.complete(buried);
        Bench.nothingMore(
            bench.subscriptionReceiver(topic, "s2", ServiceBusReceiveMode.PEEK_LOCK, SubQueue.DEAD_LETTER_QUEUE));
        Bench.equal("s2", bench.drain(topic, "s2"), List.of("x"));
    }

    private static void sessionsAndSchedule(Bench bench) {
        String topic = bench.topic();
        bench.admin.createSubscription(topic, "s", new CreateSubscriptionOptions().setSessionRequired(true));
        bench.topicSender(topic).scheduleMessage(Bench.text("later").setSessionId("one"),
            OffsetDateTime.now(ZoneOffset.UTC).plusNanos(1_500_000_000L));
        ServiceBusReceiverClient receiver = bench.keep(bench.keep(
            bench.shared().sessionReceiver().topicName(topic).subscriptionName("s").buildClient()).acceptNextSession());
        Bench.equal("session", receiver.getSessionId(), "one");
        ServiceBusReceivedMessage got = Bench.one(receiver);
        Bench.equal("body", got.getBody().toString(), "later");
        receiver.complete(got);
    }

    private TopicCases() {
    }
}
