package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func sendReceiveComplete(b *bench) {
	queue := b.queue(nil)
	b.send(queue, text("hello wörld"))
	receiver := b.receiver(queue)
	message := b.one(receiver)
	equal("body", string(message.Body), "hello wörld")
	equal("delivery count", message.DeliveryCount, 1) // the SDK counts this delivery too
	b.complete(receiver, message)
	b.nothingMore(receiver)
}

func systemProperties(b *bench) {
	queue := b.queue(nil)
	before := time.Now()
	b.send(queue, &azservicebus.Message{
		Body: []byte("one"), MessageID: ptr("id-1"), CorrelationID: ptr("corr-1"), Subject: ptr("a subject"),
		ContentType: ptr("text/plain"), To: ptr("somewhere"), ReplyTo: ptr("back"), ReplyToSessionID: ptr("back-session"),
		PartitionKey: ptr("pk"), TimeToLive: ptr(time.Minute),
	}, text("two"))
	receiver := b.receiver(queue)
	got := b.receive(receiver, 2)
	first, second := got[0], got[1]
	equal("message id", first.MessageID, "id-1")
	equal("correlation id", *first.CorrelationID, "corr-1")
	equal("subject", *first.Subject, "a subject")
	equal("content type", *first.ContentType, "text/plain")
	equal("to", *first.To, "somewhere")
	equal("reply to", *first.ReplyTo, "back")
	equal("reply to session", *first.ReplyToSessionID, "back-session")
	equal("partition key", *first.PartitionKey, "pk")
	equal("time to live", *first.TimeToLive, time.Minute)
	expect(near(*first.EnqueuedTime, before, 5*time.Second), "enqueued at %v", first.EnqueuedTime)
	expect(near(*first.LockedUntil, before.Add(time.Minute), 8*time.Second), "locked until %v", first.LockedUntil)
	expect(near(*first.ExpiresAt, before.Add(time.Minute), 8*time.Second), "expires at %v", first.ExpiresAt)
	expect(*second.SequenceNumber > *first.SequenceNumber, "sequence numbers grow")
	equal("state", first.State, azservicebus.MessageStateActive)
	expect(first.LockToken != [16]byte{}, "no lock token")
	expect(second.MessageID != "", "the service gives an id to a message without one")
	b.complete(receiver, first, second)
}

func batchSend(b *bench) {
	queue := b.queue(nil)
	sender := b.sender(queue)
	batch := must(sender.NewMessageBatch(b.ctx, nil))
	for i := range 20 {
		check(batch.AddMessage(&azservicebus.Message{
			Body: fmt.Appendf(nil, "%d", i), MessageID: ptr(fmt.Sprintf("b%d", i)),
			ApplicationProperties: map[string]any{"i": int64(i)},
		}, nil))
	}
	equal("batch", batch.NumMessages(), 20)
	check(sender.SendMessageBatch(b.ctx, batch, nil))
	receiver := b.receiver(queue)
	messages := b.receive(receiver, 20)
	for i, message := range messages {
		equal("body", string(message.Body), fmt.Sprint(i))
		equal("id", message.MessageID, fmt.Sprintf("b%d", i))
		equal("property", message.ApplicationProperties["i"], any(int64(i)))
	}
	b.complete(receiver, messages...)
	b.nothingMore(receiver)
}

func drain500(b *bench) {
	queue := b.queue(nil)
	sender := b.sender(queue)
	batch := must(sender.NewMessageBatch(b.ctx, nil))
	for i := range 500 {
		check(batch.AddMessage(text(fmt.Sprint(i)), nil))
	}
	check(sender.SendMessageBatch(b.ctx, batch, nil))
	receiver := b.receiver(queue)
	seen := map[string]bool{}
	for len(seen) < 500 {
		for _, message := range must(receiver.ReceiveMessages(b.ctx, 100, nil)) {
			check(receiver.CompleteMessage(b.ctx, message, nil))
			seen[string(message.Body)] = true
		}
	}
	equal("left", b.counts(queue).TotalMessageCount, 0)
}

func abandonWithProperties(b *bench) {
	queue := b.queue(nil)
	b.send(queue, &azservicebus.Message{Body: []byte("x"), ApplicationProperties: map[string]any{"kept": "yes", "changed": int64(1)}})
	receiver := b.receiver(queue)
	first := b.one(receiver)
	check(receiver.AbandonMessage(b.ctx, first, &azservicebus.AbandonMessageOptions{
		PropertiesToModify: map[string]any{"changed": int64(2), "added": "new"},
	}))
	second := b.one(receiver)
	equal("delivery count", second.DeliveryCount, 2)
	equal("sequence number", *second.SequenceNumber, *first.SequenceNumber)
	equal("properties", len(second.ApplicationProperties), 3)
	equal("kept", second.ApplicationProperties["kept"], any("yes"))
	equal("changed", second.ApplicationProperties["changed"], any(int64(2)))
	equal("added", second.ApplicationProperties["added"], any("new"))
	b.complete(receiver, second)
}

func maxDeliveryCount(b *bench) {
	queue := b.queue(&admin.QueueProperties{MaxDeliveryCount: ptr(int32(2))})
	b.send(queue, text("poison"))
	receiver := b.receiver(queue)
	for range 2 {
		check(receiver.AbandonMessage(b.ctx, b.one(receiver), nil))
	}
	dead := b.deadLetters(queue)
	message := b.one(dead)
	equal("reason", *message.DeadLetterReason, "MaxDeliveryCountExceeded")
	b.complete(dead, message)
	b.nothingMore(receiver)
}

func deferAndReceive(b *bench) {
	queue := b.queue(nil)
	b.send(queue, text("a"), text("b"))
	receiver := b.receiver(queue)
	got := b.receive(receiver, 2)
	check(receiver.DeferMessage(b.ctx, got[0], &azservicebus.DeferMessageOptions{
		PropertiesToModify: map[string]any{"why": "later"},
	}))
	b.complete(receiver, got[1])
	b.nothingMore(receiver)
	peeked := must(receiver.PeekMessages(b.ctx, 1, nil))
	equal("state", peeked[0].State, azservicebus.MessageStateDeferred)
	deferred := must(receiver.ReceiveDeferredMessages(b.ctx, []int64{*got[0].SequenceNumber}, nil))
	sameList("deferred", bodies(deferred), []string{"a"})
	equal("property", deferred[0].ApplicationProperties["why"], any("later"))
	b.complete(receiver, deferred...)
	_, err := receiver.ReceiveDeferredMessages(b.ctx, []int64{*got[0].SequenceNumber}, nil)
	code(err, azservicebus.CodeNotFound)
}

func deadLetter(b *bench) {
	queue := b.queue(nil)
	b.send(queue, &azservicebus.Message{Body: []byte("bad"), ApplicationProperties: map[string]any{"n": int64(1)}})
	receiver := b.receiver(queue)
	check(receiver.DeadLetterMessage(b.ctx, b.one(receiver), &azservicebus.DeadLetterOptions{
		Reason: ptr("broken"), ErrorDescription: ptr("it does not parse"), PropertiesToModify: map[string]any{"extra": "seen"},
	}))
	dead := b.deadLetters(queue)
	buried := b.one(dead)
	equal("body", string(buried.Body), "bad")
	equal("reason", *buried.DeadLetterReason, "broken")
	equal("description", *buried.DeadLetterErrorDescription, "it does not parse")
	equal("property", buried.ApplicationProperties["n"], any(int64(1)))
	equal("extra", buried.ApplicationProperties["extra"], any("seen"))
	b.complete(dead, buried)
	b.nothingMore(dead)
}

func peek(b *bench) {
	queue := b.queue(nil)
	b.send(queue, text("0"), text("1"), text("2"), text("3"), text("4"))
	receiver := b.receiver(queue)
	sameList("first", bodies(must(receiver.PeekMessages(b.ctx, 2, nil))), []string{"0", "1"})
	rest := must(receiver.PeekMessages(b.ctx, 10, nil))
	sameList("rest", bodies(rest), []string{"2", "3", "4"})
	again := must(receiver.PeekMessages(b.ctx, 2, &azservicebus.PeekMessagesOptions{FromSequenceNumber: rest[1].SequenceNumber}))
	sameList("again", bodies(again), []string{"3", "4"})
	sameList("end", bodies(must(receiver.PeekMessages(b.ctx, 5, nil))), []string{})
	equal("delivery count", b.receive(receiver, 5)[0].DeliveryCount, 1)
}

func scheduleAndCancel(b *bench) {
	queue := b.queue(nil)
	sender := b.sender(queue)
	at := time.Now().Add(2500 * time.Millisecond)
	numbers := must(sender.ScheduleMessages(b.ctx, []*azservicebus.Message{text("stays"), text("goes")}, at, nil))
	equal("numbers", len(numbers), 2)
	receiver := b.receiver(queue)
	for _, message := range must(receiver.PeekMessages(b.ctx, 5, nil)) {
		equal("state", message.State, azservicebus.MessageStateScheduled)
	}
	equal("scheduled", b.counts(queue).ScheduledMessageCount, 2)
	check(sender.CancelScheduledMessages(b.ctx, numbers[1:], nil))
	b.nothingMore(receiver)
	message := b.one(receiver)
	equal("body", string(message.Body), "stays")
	expect(time.Now().After(at.Add(-200*time.Millisecond)), "arrived too early")
	b.complete(receiver, message)
	b.nothingMore(receiver)
}

func scheduledByProperty(b *bench) {
	queue := b.queue(nil)
	at := time.Now().Add(2 * time.Second)
	b.send(queue, &azservicebus.Message{Body: []byte("later"), ScheduledEnqueueTime: &at})
	receiver := b.receiver(queue)
	b.nothingMore(receiver)
	message := b.one(receiver)
	expect(time.Now().After(at.Add(-200*time.Millisecond)), "arrived too early")
	b.complete(receiver, message)
}

var shortLock = &admin.QueueProperties{LockDuration: ptr("PT5S")}

func renewLock(b *bench) {
	queue := b.queue(shortLock)
	b.send(queue, text("slow"))
	receiver := b.receiver(queue)
	message := b.one(receiver)
	before := *message.LockedUntil
	time.Sleep(3 * time.Second)
	check(receiver.RenewMessageLock(b.ctx, message, nil))
	expect(message.LockedUntil.After(before.Add(1500*time.Millisecond)), "%v is not later than %v", message.LockedUntil, before)
	time.Sleep(3500 * time.Millisecond)
	b.complete(receiver, message)
	b.nothingMore(receiver)
}

func lockExpiry(b *bench) {
	queue := b.queue(shortLock)
	b.send(queue, text("slow"))
	receiver := b.receiver(queue)
	first := b.one(receiver)
	second := b.one(receiver)
	equal("delivery count", second.DeliveryCount, 2)
	expect(first.LockToken != second.LockToken, "the lock token is the same")
	code(receiver.CompleteMessage(b.ctx, first, nil), azservicebus.CodeLockLost)
	b.complete(receiver, second)
	b.nothingMore(receiver)
}

func receiveAndDelete(b *bench) {
	queue := b.queue(nil)
	b.send(queue, text("1"), text("2"))
	sameList("bodies", bodies(b.receive(b.deleting(queue), 2)), []string{"1", "2"})
	b.eventuallyEmpty(queue)
}

func ttlDeadLetter(b *bench) {
	queue := b.queue(&admin.QueueProperties{DeadLetteringOnMessageExpiration: ptr(true)})
	b.send(queue, &azservicebus.Message{Body: []byte("brief"), TimeToLive: ptr(time.Second)})
	dead := b.deadLetters(queue)
	message := b.one(dead)
	equal("body", string(message.Body), "brief")
	equal("reason", *message.DeadLetterReason, "TTLExpiredException")
	b.complete(dead, message)
}

func ttlOfEntityDiscards(b *bench) {
	queue := b.queue(&admin.QueueProperties{DefaultMessageTimeToLive: ptr("PT1S")})
	b.send(queue, text("brief"))
	time.Sleep(1500 * time.Millisecond)
	b.nothingMore(b.receiver(queue))
	b.nothingMore(b.deadLetters(queue))
}

func duplicateDetection(b *bench) {
	queue := b.queue(&admin.QueueProperties{
		RequiresDuplicateDetection: ptr(true), DuplicateDetectionHistoryTimeWindow: ptr("PT1M"),
	})
	sender := b.sender(queue)
	for _, body := range []string{"first", "again"} {
		check(sender.SendMessage(b.ctx, &azservicebus.Message{Body: []byte(body), MessageID: ptr("same")}, nil))
	}
	batch := must(sender.NewMessageBatch(b.ctx, nil))
	check(batch.AddMessage(&azservicebus.Message{Body: []byte("batched"), MessageID: ptr("same")}, nil))
	check(batch.AddMessage(&azservicebus.Message{Body: []byte("other"), MessageID: ptr("different")}, nil))
	check(sender.SendMessageBatch(b.ctx, batch, nil))
	receiver := b.deleting(queue)
	sameList("bodies", bodies(b.receive(receiver, 2)), []string{"first", "other"})
	b.nothingMore(receiver)
}

func autoForward(b *bench) {
	target := b.queueNamed("target", nil)
	source := b.queueNamed("source", &admin.QueueProperties{ForwardTo: &target})
	b.send(source, &azservicebus.Message{Body: []byte("onward"), ApplicationProperties: map[string]any{"n": int64(1)}})
	receiver := b.receiver(target)
	message := b.one(receiver)
	equal("body", string(message.Body), "onward")
	equal("property", message.ApplicationProperties["n"], any(int64(1)))
	b.complete(receiver, message)
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
