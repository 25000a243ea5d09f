package main

import (
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func topicDefaultRule(b *bench) {
	topic := b.topic(subscriptions{"s1": nil, "s2": nil})
	b.send(topic, text("a"), text("b"))
	for _, subscription := range []string{"s1", "s2"} {
		sameList(subscription, b.drain(topic, subscription), []string{"a", "b"})
	}
	sameList("rules", b.ruleNames(topic, "s1"), []string{"$Default"})
}

func topicSQLFilter(b *bench) {
	sql := func(expression string, parameters map[string]any) *admin.SubscriptionProperties {
		return onlyRule(&admin.SQLFilter{Expression: expression, Parameters: parameters}, nil)
	}
	topic := b.topic(subscriptions{
		"big":       sql("amount > 100 AND region = 'EU'", nil),
		"like":      sql("sys.Label LIKE 'order%' AND region IN ('US', 'EU')", nil),
		"absent":    sql("NOT EXISTS(amount) OR amount IS NULL", nil),
		"parameter": sql("amount >= @limit", map[string]any{"@limit": int64(100)}),
		"never":     onlyRule(&admin.FalseFilter{}, nil),
		"always":    onlyRule(&admin.TrueFilter{}, nil),
	})
	message := func(body, subject string, properties map[string]any) *azservicebus.Message {
		return &azservicebus.Message{Body: []byte(body), Subject: &subject, ApplicationProperties: properties}
	}
	b.send(topic,
		message("a", "order.new", map[string]any{"amount": int32(150), "region": "EU"}),
		message("b", "order.old", map[string]any{"amount": int64(50), "region": "EU"}),
		message("c", "refund", map[string]any{"amount": 100.5, "region": "US"}),
		message("d", "order.x", map[string]any{"region": "US"}))
	sameList("big", b.drain(topic, "big"), []string{"a"})
	sameList("like", b.drain(topic, "like"), []string{"a", "b", "d"})
	sameList("absent", b.drain(topic, "absent"), []string{"d"})
	sameList("parameter", b.drain(topic, "parameter"), []string{"a", "c"})
	sameList("never", b.drain(topic, "never"), []string{})
	sameList("always", b.drain(topic, "always"), []string{"a", "b", "c", "d"})
}

func topicCorrelationFilter(b *bench) {
	topic := b.topic(subscriptions{
		"id": onlyRule(&admin.CorrelationFilter{CorrelationID: ptr("c1")}, nil),
		"many": onlyRule(&admin.CorrelationFilter{
			Subject: ptr("s"), ContentType: ptr("t"), ApplicationProperties: map[string]any{"colour": "red", "size": int64(3)},
		}, nil),
	})
	message := func(body, correlation, colour string) *azservicebus.Message {
		return &azservicebus.Message{
			Body: []byte(body), CorrelationID: &correlation, Subject: ptr("s"), ContentType: ptr("t"),
			ApplicationProperties: map[string]any{"colour": colour, "size": int64(3)},
		}
	}
	b.send(topic, &azservicebus.Message{Body: []byte("a"), CorrelationID: ptr("c1")}, message("b", "c2", "red"), message("c", "c1", "blue"))
	sameList("id", b.drain(topic, "id"), []string{"a", "c"})
	sameList("many", b.drain(topic, "many"), []string{"b"})
}

func topicSQLAction(b *bench) {
	topic := b.topic(subscriptions{"s": onlyRule(&admin.SQLFilter{Expression: "1=1"},
		&admin.SQLAction{Expression: "SET quantity = quantity * 2; SET sys.Label = 'changed'; REMOVE secret"})})
	b.send(topic, &azservicebus.Message{
		Body: []byte("a"), Subject: ptr("before"),
		ApplicationProperties: map[string]any{"quantity": int64(21), "secret": "x"},
	})
	receiver := must(b.client.NewReceiverForSubscription(topic, "s", nil))
	message := b.one(receiver)
	equal("subject", *message.Subject, "changed")
	equal("properties", len(message.ApplicationProperties), 2)
	equal("rule", message.ApplicationProperties["RuleName"], any("only"))
	equal("quantity", message.ApplicationProperties["quantity"], any(int64(42)))
	b.complete(receiver, message)
}

func topicSubscriptionDeadLetter(b *bench) {
	topic := b.topic(subscriptions{"s1": nil, "s2": nil})
	b.send(topic, text("x"))
	receiver := must(b.client.NewReceiverForSubscription(topic, "s1", nil))
	check(receiver.DeadLetterMessage(b.ctx, b.one(receiver), &azservicebus.DeadLetterOptions{Reason: ptr("r"), ErrorDescription: ptr("d")}))
	deadLetters := func(subscription string) *azservicebus.Receiver {
		return must(b.client.NewReceiverForSubscription(topic, subscription, &azservicebus.ReceiverOptions{
			SubQueue: azservicebus.SubQueueDeadLetter,
		}))
	}
	buried := b.one(deadLetters("s1"))
	equal("reason", *buried.DeadLetterReason, "r")
	b.nothingMore(deadLetters("s2"))
	sameList("s2", b.drain(topic, "s2"), []string{"x"})
}

func topicSessionsAndSchedule(b *bench) {
	topic := b.topic(subscriptions{"s": {RequiresSession: ptr(true)}})
	must(b.sender(topic).ScheduleMessages(b.ctx, []*azservicebus.Message{inSession("one", "later")},
		time.Now().Add(1500*time.Millisecond), nil))
	receiver := must(b.client.AcceptNextSessionForSubscription(b.ctx, topic, "s", nil))
	equal("session", receiver.SessionID(), "one")
	message := b.one(receiver)
	equal("body", string(message.Body), "later")
	b.complete(receiver, message)
}
