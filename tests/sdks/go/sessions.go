package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func inSession(session, body string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body), SessionID: &session}
}

func (b *bench) sessionQueue() string {
	return b.queue(&admin.QueueProperties{RequiresSession: ptr(true)})
}

func (b *bench) shortSessionQueue() string {
	return b.queue(&admin.QueueProperties{RequiresSession: ptr(true), LockDuration: ptr("PT5S")})
}

func (b *bench) accept(queue, session string) *azservicebus.SessionReceiver {
	return must(b.client.AcceptSessionForQueue(b.ctx, queue, session, nil))
}

func sessionNamed(b *bench) {
	queue := b.sessionQueue()
	b.send(queue, inSession("a", "1"), inSession("b", "2"))
	receiver := b.accept(queue, "b")
	equal("session", receiver.SessionID(), "b")
	message := b.one(receiver)
	equal("body", string(message.Body), "2")
	equal("session of the message", *message.SessionID, "b")
	b.complete(receiver, message)
	b.nothingMore(receiver)
}

func sessionNext(b *bench) {
	queue := b.sessionQueue()
	b.send(queue, inSession("a", "1"), inSession("b", "2"))
	seen := map[string]string{}
	for range 2 {
		receiver := must(b.client.AcceptNextSessionForQueue(b.ctx, queue, nil))
		message := b.one(receiver)
		seen[receiver.SessionID()] = string(message.Body)
		b.complete(receiver, message)
		check(receiver.Close(b.ctx))
	}
	equal("seen", fmt.Sprint(seen), "map[a:1 b:2]")
}

func sessionOrder(b *bench) {
	queue := b.sessionQueue()
	var messages []*azservicebus.Message
	want := map[string][]string{}
	for i := range 20 {
		session := []string{"even", "odd"}[i%2]
		messages = append(messages, inSession(session, fmt.Sprint(i)))
		want[session] = append(want[session], fmt.Sprint(i))
	}
	b.send(queue, messages...)
	for _, session := range []string{"odd", "even"} {
		receiver := b.accept(queue, session)
		got := b.receive(receiver, 10)
		sameList(session, bodies(got), want[session])
		b.complete(receiver, got...)
	}
}

func sessionState(b *bench) {
	queue := b.sessionQueue()
	b.send(queue, inSession("s", "1"))
	receiver := b.accept(queue, "s")
	equal("no state yet", len(must(receiver.GetSessionState(b.ctx, nil))), 0)
	state := []byte{0, 1, 2, 255}
	check(receiver.SetSessionState(b.ctx, state, nil))
	sameList("state", must(receiver.GetSessionState(b.ctx, nil)), state)
	check(receiver.Close(b.ctx))
	again := b.accept(queue, "s")
	sameList("state kept", must(again.GetSessionState(b.ctx, nil)), state)
	check(again.SetSessionState(b.ctx, nil, nil))
	equal("state cleared", len(must(again.GetSessionState(b.ctx, nil))), 0)
}

func sessionRenewLock(b *bench) {
	queue := b.shortSessionQueue()
	b.send(queue, inSession("s", "1"))
	receiver := b.accept(queue, "s")
	before := receiver.LockedUntil()
	expect(near(before, time.Now().Add(5*time.Second), 3*time.Second), "locked until %v", before)
	message := b.one(receiver)
	time.Sleep(3 * time.Second)
	check(receiver.RenewSessionLock(b.ctx, nil))
	until := receiver.LockedUntil()
	expect(until.After(before.Add(1500*time.Millisecond)), "%v is not later than %v", until, before)
	time.Sleep(3500 * time.Millisecond)
	b.complete(receiver, message)
}

func sessionLockLost(b *bench) {
	queue := b.shortSessionQueue()
	b.send(queue, inSession("s", "1"))
	receiver := b.accept(queue, "s")
	message := b.one(receiver)
	time.Sleep(6500 * time.Millisecond)
	// The SDK takes a session's lost lock for something to retry, for minutes: it is given less.
	ctx, cancel := context.WithTimeout(b.ctx, 2*time.Second)
	defer cancel()
	err := receiver.CompleteMessage(ctx, message, nil)
	expect(err != nil, "a message of a lost session was completed")
	_ = receiver.Close(b.ctx)
	again := must(b.connect(connectionString()).AcceptSessionForQueue(b.ctx, queue, "s", nil))
	b.complete(again, b.one(again))
}

func sessionNextTimeout(b *bench) {
	queue := b.sessionQueue()
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Second)
	defer cancel()
	started := time.Now()
	_, err := b.client.AcceptNextSessionForQueue(ctx, queue, nil)
	took := time.Since(started)
	// The SDK passes the deadline on, less some jitter: the service's own answer comes first, or a breath too late.
	expect(err != nil, "a session came from nowhere")
	expect(took > 2*time.Second && took < 8*time.Second, "took %v: %v", took, err)
	if ctx.Err() == nil {
		code(err, azservicebus.CodeTimeout)
	}
}

func sessionCannotBeLocked(b *bench) {
	queue := b.sessionQueue()
	other := b.connect(connectionString())
	holder := b.accept(queue, "s")
	_, err := other.AcceptSessionForQueue(b.ctx, queue, "s", nil)
	expect(err != nil, "one session, two holders")
	check(holder.Close(b.ctx))
	next := must(other.AcceptSessionForQueue(b.ctx, queue, "s", nil))
	equal("session", next.SessionID(), "s")
}

func sessionRulesOfTheQueue(b *bench) {
	queue := b.sessionQueue()
	ctx, cancel := context.WithTimeout(b.ctx, 4*time.Second)
	defer cancel()
	_, err := b.receiver(queue).ReceiveMessages(ctx, 1, nil)
	expect(err != nil && ctx.Err() == nil, "a receiver without a session was not refused: %v", err)
	expect(b.sender(queue).SendMessage(b.ctx, text("without a session id"), nil) != nil, "a message without a session was accepted")
}

func sessionDeferAndPeek(b *bench) {
	queue := b.sessionQueue()
	b.send(queue, inSession("s", "a"), inSession("s", "b"), inSession("other", "c"))
	receiver := b.accept(queue, "s")
	// The SDK does not say of which session it wants to peek: it gets the messages of all.
	sameList("peeked", bodies(must(receiver.PeekMessages(b.ctx, 10, nil))), []string{"a", "b", "c"})
	got := b.receive(receiver, 2)
	check(receiver.DeferMessage(b.ctx, got[0], nil))
	check(receiver.DeadLetterMessage(b.ctx, got[1], &azservicebus.DeadLetterOptions{Reason: ptr("r"), ErrorDescription: ptr("d")}))
	b.complete(receiver, must(receiver.ReceiveDeferredMessages(b.ctx, []int64{*got[0].SequenceNumber}, nil))...)
	dead := b.deadLetters(queue)
	buried := b.one(dead)
	equal("session", *buried.SessionID, "s")
	b.complete(dead, buried)
}

func sessionList(b *bench) {
	queue := b.sessionQueue()
	b.send(queue, inSession("a", "1"), inSession("b", "2"), inSession("b", "3"))
	receiver := b.accept(queue, "stateful")
	check(receiver.SetSessionState(b.ctx, []byte("kept"), nil))
	check(receiver.Close(b.ctx))
	list := func(options *azservicebus.ListSessionsOptions) []string {
		var found []string
		for pager := b.client.NewListSessionsForQueuePager(queue, options); pager.More(); {
			found = append(found, must(pager.NextPage(b.ctx)).Sessions...)
		}
		slices.Sort(found)
		return found
	}
	sameList("sessions", list(nil), []string{"a", "b", "stateful"})
	sameList("with fresh state", list(&azservicebus.ListSessionsOptions{
		SessionStateUpdatedAfter: ptr(time.Now().Add(-time.Hour)),
	}), []string{"stateful"})
}
