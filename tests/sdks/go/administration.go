package main

import (
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func (b *bench) queueNames(pageSize int32) (names []string, pages int) {
	for pager := b.admin.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: pageSize}); pager.More(); {
		page := must(pager.NextPage(b.ctx))
		expect(pageSize == 0 || len(page.Queues) <= int(pageSize), "a page of %d", len(page.Queues))
		for _, queue := range page.Queues {
			names = append(names, queue.QueueName)
		}
		pages++
	}
	return names, pages
}

func (b *bench) ruleNames(topic, subscription string) []string {
	var names []string
	for pager := b.admin.NewListRulesPager(topic, subscription, nil); pager.More(); {
		for _, rule := range must(pager.NextPage(b.ctx)).Rules {
			names = append(names, rule.Name)
		}
	}
	return sorted(names)
}

func adminQueue(b *bench) {
	name := b.prefix + "-q"
	expect(must(b.admin.GetQueue(b.ctx, name, nil)) == nil, "the queue is there already")
	created := must(b.admin.CreateQueue(b.ctx, name, &admin.CreateQueueOptions{Properties: &admin.QueueProperties{
		LockDuration: ptr("PT45S"), MaxDeliveryCount: ptr(int32(7)), RequiresSession: ptr(true),
		DefaultMessageTimeToLive: ptr("P2D"), DeadLetteringOnMessageExpiration: ptr(true), UserMetadata: ptr("notes & <more>"),
	}}))
	equal("name", created.QueueName, name)
	got := must(b.admin.GetQueue(b.ctx, name, nil))
	equal("lock duration", *got.LockDuration, "PT45S")
	equal("max delivery count", *got.MaxDeliveryCount, 7)
	equal("requires session", *got.RequiresSession, true)
	equal("time to live", *got.DefaultMessageTimeToLive, "P2D")
	equal("dead-lettering", *got.DeadLetteringOnMessageExpiration, true)
	equal("metadata", *got.UserMetadata, "notes & <more>")
	equal("status", *got.Status, admin.EntityStatusActive)
	equal("duplicate detection", *got.RequiresDuplicateDetection, false)
	properties := got.QueueProperties
	properties.MaxDeliveryCount = ptr(int32(9))
	properties.LockDuration = ptr("PT1M")
	updated := must(b.admin.UpdateQueue(b.ctx, name, properties, nil))
	equal("updated", *updated.MaxDeliveryCount, 9)
	equal("updated lock", *must(b.admin.GetQueue(b.ctx, name, nil)).LockDuration, "PT1M")
	names, _ := b.queueNames(0)
	expect(slices.Contains(names, name), "%s is not listed", name)
	must(b.admin.DeleteQueue(b.ctx, name, nil))
	expect(must(b.admin.GetQueue(b.ctx, name, nil)) == nil, "the queue is still there")
}

func adminListPages(b *bench) {
	var mine []string
	for _, suffix := range []string{"q0", "q1", "q2", "q3", "q4"} {
		mine = append(mine, b.queueNamed(suffix, nil))
	}
	names, pages := b.queueNames(2)
	expect(pages >= 3, "%d pages", pages)
	for _, name := range mine {
		count := 0
		for _, other := range names {
			if other == name {
				count++
			}
		}
		equal(name, count, 1)
	}
}

func adminTopic(b *bench) {
	name := b.prefix + "-t"
	expect(must(b.admin.GetTopic(b.ctx, name, nil)) == nil, "the topic is there already")
	must(b.admin.CreateTopic(b.ctx, name, &admin.CreateTopicOptions{Properties: &admin.TopicProperties{
		DefaultMessageTimeToLive: ptr("PT3H"), RequiresDuplicateDetection: ptr(true), UserMetadata: ptr("t"),
	}}))
	got := must(b.admin.GetTopic(b.ctx, name, nil))
	equal("time to live", *got.DefaultMessageTimeToLive, "PT3H")
	equal("duplicate detection", *got.RequiresDuplicateDetection, true)
	properties := got.TopicProperties
	properties.UserMetadata = ptr("changed")
	equal("updated", *must(b.admin.UpdateTopic(b.ctx, name, properties, nil)).UserMetadata, "changed")
	found := false
	for pager := b.admin.NewListTopicsPager(nil); pager.More(); {
		for _, topic := range must(pager.NextPage(b.ctx)).Topics {
			found = found || topic.TopicName == name
		}
	}
	expect(found, "%s is not listed", name)
	must(b.admin.CreateSubscription(b.ctx, name, "s", nil))
	runtime := must(b.admin.GetTopicRuntimeProperties(b.ctx, name, nil))
	equal("subscriptions", runtime.SubscriptionCount, 1)
	expect(near(runtime.CreatedAt, time.Now(), time.Minute), "created at %v", runtime.CreatedAt)
	must(b.admin.DeleteTopic(b.ctx, name, nil))
	expect(must(b.admin.GetTopic(b.ctx, name, nil)) == nil, "the topic is still there")
}

func adminSubscription(b *bench) {
	topic := b.topic(nil)
	expect(must(b.admin.GetSubscription(b.ctx, topic, "s", nil)) == nil, "the subscription is there already")
	must(b.admin.CreateSubscription(b.ctx, topic, "s", &admin.CreateSubscriptionOptions{
		Properties: &admin.SubscriptionProperties{
			LockDuration: ptr("PT30S"), MaxDeliveryCount: ptr(int32(4)), RequiresSession: ptr(true),
		},
	}))
	got := must(b.admin.GetSubscription(b.ctx, topic, "s", nil))
	equal("topic", got.TopicName, topic)
	equal("name", got.SubscriptionName, "s")
	equal("lock duration", *got.LockDuration, "PT30S")
	equal("max delivery count", *got.MaxDeliveryCount, 4)
	equal("requires session", *got.RequiresSession, true)
	properties := got.SubscriptionProperties
	properties.MaxDeliveryCount = ptr(int32(5))
	equal("updated", *must(b.admin.UpdateSubscription(b.ctx, topic, "s", properties, nil)).MaxDeliveryCount, 5)
	must(b.admin.CreateSubscription(b.ctx, topic, "s2", nil))
	var names []string
	for pager := b.admin.NewListSubscriptionsPager(topic, nil); pager.More(); {
		for _, subscription := range must(pager.NextPage(b.ctx)).Subscriptions {
			names = append(names, subscription.SubscriptionName)
		}
	}
	sameList("subscriptions", sorted(names), []string{"s", "s2"})
	must(b.admin.DeleteSubscription(b.ctx, topic, "s", nil))
	expect(must(b.admin.GetSubscription(b.ctx, topic, "s", nil)) == nil, "the subscription is still there")
}

func adminRule(b *bench) {
	topic := b.topic(subscriptions{"s": nil})
	when := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	must(b.admin.CreateRule(b.ctx, topic, "s", &admin.CreateRuleOptions{
		Name:   ptr("sql"),
		Filter: &admin.SQLFilter{Expression: "a = @x AND b < 'q'", Parameters: map[string]any{"@x": int64(5)}},
		Action: &admin.SQLAction{Expression: "SET c = 1"},
	}))
	properties := map[string]any{"s": "t", "n": int64(4), "b": true, "f": 1.5, "when": when}
	must(b.admin.CreateRule(b.ctx, topic, "s", &admin.CreateRuleOptions{
		Name: ptr("corr"), Filter: &admin.CorrelationFilter{Subject: ptr("sub"), ApplicationProperties: properties},
	}))
	sql := must(b.admin.GetRule(b.ctx, topic, "s", "sql", nil))
	filter, ok := sql.Filter.(*admin.SQLFilter)
	expect(ok, "the filter is a %T", sql.Filter)
	equal("filter", filter.Expression, "a = @x AND b < 'q'")
	equal("parameter", filter.Parameters["@x"], any(int64(5)))
	action, ok := sql.Action.(*admin.SQLAction)
	expect(ok, "the action is a %T", sql.Action)
	equal("action", action.Expression, "SET c = 1")
	correlation, ok := must(b.admin.GetRule(b.ctx, topic, "s", "corr", nil)).Filter.(*admin.CorrelationFilter)
	expect(ok, "not a correlation filter")
	equal("subject", *correlation.Subject, "sub")
	for key, value := range properties {
		found := correlation.ApplicationProperties[key]
		if key == "when" {
			expect(found.(time.Time).Equal(when), "when: got %v", found)
			continue
		}
		expect(found == value, "%s: got %T %v", key, found, found)
	}
	updated := must(b.admin.UpdateRule(b.ctx, topic, "s", admin.RuleProperties{Name: "sql", Filter: &admin.SQLFilter{Expression: "a = 6"}}))
	equal("updated", updated.Filter.(*admin.SQLFilter).Expression, "a = 6")
	sameList("rules", b.ruleNames(topic, "s"), []string{"$Default", "corr", "sql"})
	must(b.admin.DeleteRule(b.ctx, topic, "s", "sql", nil))
	sameList("rules left", b.ruleNames(topic, "s"), []string{"$Default", "corr"})
	_, err := b.admin.CreateRule(b.ctx, topic, "s", &admin.CreateRuleOptions{
		Name: ptr("bad"), Filter: &admin.SQLFilter{Expression: "this is not = = sql"},
	})
	status(err, 400)
}

func adminRuntimeCounts(b *bench) {
	queue := b.queue(nil)
	sender := b.sender(queue)
	b.send(queue, text("1"), text("2"), text("3"), text("4"))
	must(sender.ScheduleMessages(b.ctx, []*azservicebus.Message{text("later")}, time.Now().Add(time.Hour), nil))
	receiver := b.receiver(queue)
	check(receiver.DeadLetterMessage(b.ctx, b.one(receiver), nil))
	counts := b.counts(queue)
	equal("active", counts.ActiveMessageCount, 3)
	equal("dead-letter", counts.DeadLetterMessageCount, 1)
	equal("scheduled", counts.ScheduledMessageCount, 1)
	equal("transfer", counts.TransferMessageCount, 0)
	equal("total", counts.TotalMessageCount, 5)
	expect(counts.SizeInBytes > 0, "no size")
	expect(near(counts.CreatedAt, time.Now(), time.Minute), "created at %v", counts.CreatedAt)
	topic := b.topic(subscriptions{"s1": nil, "s2": onlyRule(&admin.FalseFilter{}, nil)})
	b.send(topic, text("1"), text("2"))
	equal("s1", must(b.admin.GetSubscriptionRuntimeProperties(b.ctx, topic, "s1", nil)).ActiveMessageCount, 2)
	totals := map[string]int64{}
	for pager := b.admin.NewListSubscriptionsRuntimePropertiesPager(topic, nil); pager.More(); {
		for _, s := range must(pager.NextPage(b.ctx)).SubscriptionRuntimeProperties {
			totals[s.SubscriptionName] = s.TotalMessageCount
		}
	}
	equal("subscriptions", len(totals), 2)
	equal("total of s1", totals["s1"], 2)
	equal("total of s2", totals["s2"], 0)
}

func adminNotFound(b *bench) {
	absent := b.prefix + "-absent"
	topic := b.topic(subscriptions{"s": nil})
	expect(must(b.admin.GetQueue(b.ctx, absent, nil)) == nil, "queue")
	expect(must(b.admin.GetTopic(b.ctx, absent, nil)) == nil, "topic")
	expect(must(b.admin.GetQueueRuntimeProperties(b.ctx, absent, nil)) == nil, "runtime properties")
	expect(must(b.admin.GetSubscription(b.ctx, topic, absent, nil)) == nil, "subscription")
	expect(must(b.admin.GetRule(b.ctx, topic, "s", absent, nil)) == nil, "rule")
	_, err := b.admin.DeleteQueue(b.ctx, absent, nil)
	status(err, 404)
	_, err = b.admin.DeleteSubscription(b.ctx, topic, absent, nil)
	status(err, 404)
}

func adminAlreadyExists(b *bench) {
	queue := b.queue(nil)
	topic := b.topic(subscriptions{"s": nil})
	_, err := b.admin.CreateQueue(b.ctx, queue, nil)
	status(err, 409)
	_, err = b.admin.CreateTopic(b.ctx, topic, nil)
	status(err, 409)
	_, err = b.admin.CreateSubscription(b.ctx, topic, "s", nil)
	status(err, 409)
	_, err = b.admin.CreateRule(b.ctx, topic, "s", &admin.CreateRuleOptions{Name: ptr("$Default")})
	status(err, 409)
}

func adminNamespace(b *bench) {
	properties := must(b.admin.GetNamespaceProperties(b.ctx, nil))
	equal("name", properties.Name, "contoso")
	expect(slices.Contains([]string{"Basic", "Standard", "Premium"}, properties.SKU), "SKU %q", properties.SKU)
	expect(!properties.CreatedTime.IsZero(), "no time of creation")
}

func adminWrongKey(b *bench) {
	_, err := administration(withWrongKey()).GetQueue(b.ctx, b.prefix+"-q", nil)
	status(err, 401)
}
