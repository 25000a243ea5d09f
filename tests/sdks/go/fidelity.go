package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/Azure/go-amqp"
)

func propertyTypes(b *bench) {
	queue := b.queue(nil)
	when := time.Date(2026, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	sent := map[string]any{
		"text": "grüße ✓", "empty": "", "yes": true, "no": false, "nothing": nil,
		"int8": int8(-8), "int16": int16(-300), "int32": int32(math.MinInt32), "int64": int64(math.MinInt64),
		"smallInt32": int32(5), "smallInt64": int64(-5), "maxInt64": int64(math.MaxInt64),
		"uint8": uint8(200), "uint16": uint16(60000), "uint32": uint32(math.MaxUint32), "uint64": uint64(math.MaxUint64),
		"smallUint32": uint32(5), "smallUint64": uint64(0),
		"float32": float32(1.5), "float64": math.Pi, "infinity": math.Inf(1),
		"when": when, "uuid": amqp.UUID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	}
	properties := map[string]any{"bytes": []byte{0, 1, 254, 255}, "symbol": amqp.Symbol("sym")}
	for key, value := range sent {
		properties[key] = value
	}
	b.send(queue, &azservicebus.Message{Body: []byte("x"), ApplicationProperties: properties})
	receiver := b.receiver(queue)
	message := b.one(receiver)
	got := message.ApplicationProperties
	for key, value := range sent {
		found, present := got[key]
		expect(present, "%s is missing", key)
		if key == "when" {
			expect(found.(time.Time).Equal(when), "when: got %v", found)
			continue
		}
		expect(found == value, "%s: got %T %v, want %T %v", key, found, found, value, value)
	}
	expect(bytes.Equal(got["bytes"].([]byte), []byte{0, 1, 254, 255}), "bytes: got %v", got["bytes"])
	equal("symbol", got["symbol"], any("sym")) // the SDK reads symbols as strings
	equal("number of properties", len(got), len(properties))
	b.complete(receiver, message)
}

func bodyTypes(b *bench) {
	queue := b.queue(nil)
	sender := b.sender(queue)
	send := func(message *azservicebus.AMQPAnnotatedMessage) {
		check(sender.SendAMQPAnnotatedMessage(b.ctx, message, nil))
	}
	send(&azservicebus.AMQPAnnotatedMessage{Body: azservicebus.AMQPAnnotatedMessageBody{Value: "a value"}})
	send(&azservicebus.AMQPAnnotatedMessage{Body: azservicebus.AMQPAnnotatedMessageBody{
		Value: map[string]any{"a": int64(1), "b": []any{"x", true}},
	}})
	send(&azservicebus.AMQPAnnotatedMessage{Body: azservicebus.AMQPAnnotatedMessageBody{
		Sequence: [][]any{{"x", int64(2)}, {true}},
	}})
	send(&azservicebus.AMQPAnnotatedMessage{Body: azservicebus.AMQPAnnotatedMessageBody{
		Data: [][]byte{{0, 255}, {1, 254}},
	}})
	send(&azservicebus.AMQPAnnotatedMessage{
		Body:               azservicebus.AMQPAnnotatedMessageBody{Data: [][]byte{[]byte("annotated")}},
		MessageAnnotations: map[any]any{"x-custom": "mine"},
		Footer:             map[any]any{"tail": "end"},
		Header:             &azservicebus.AMQPAnnotatedMessageHeader{Durable: true, Priority: 7},
		Properties: &azservicebus.AMQPAnnotatedMessageProperties{
			MessageID: uint64(12), UserID: []byte("me"), GroupSequence: ptr(uint32(4)), ContentEncoding: ptr("gzip"),
		},
	})
	receiver := b.receiver(queue)
	got := b.receive(receiver, 5)
	raw := func(i int) *azservicebus.AMQPAnnotatedMessage { return got[i].RawAMQPMessage }
	equal("value", raw(0).Body.Value, any("a value"))
	equal("map", fmt.Sprint(raw(1).Body.Value), "map[a:1 b:[x true]]")
	equal("sequence", fmt.Sprint(raw(2).Body.Sequence), "[[x 2] [true]]")
	equal("data", fmt.Sprint(raw(3).Body.Data), "[[0 255] [1 254]]")
	equal("annotated", string(raw(4).Body.Data[0]), "annotated")
	equal("annotation", fmt.Sprint(raw(4).MessageAnnotations["x-custom"]), "mine")
	equal("footer", fmt.Sprint(raw(4).Footer["tail"]), "end")
	equal("priority", raw(4).Header.Priority, 7)
	equal("durable", raw(4).Header.Durable, true)
	equal("message id", raw(4).Properties.MessageID, any(uint64(12)))
	equal("user id", string(raw(4).Properties.UserID), "me")
	equal("group sequence", *raw(4).Properties.GroupSequence, 4)
	equal("content encoding", *raw(4).Properties.ContentEncoding, "gzip")
	b.complete(receiver, got...)
}

func interopWithPython(b *bench) {
	receiver := b.receiver(os.Getenv("LOCALBUS_INTEROP") + "-in")
	message := b.one(receiver)
	b.send(os.Getenv("LOCALBUS_INTEROP")+"-out", message.Message())
	b.complete(receiver, message)
}

func largeMessage(b *bench) {
	queue := b.queue(nil)
	body := bytes.Repeat([]byte("0123456789abcdef"), 200*64)
	b.send(queue, &azservicebus.Message{Body: body})
	receiver := b.receiver(queue)
	expect(bytes.Equal(must(receiver.PeekMessages(b.ctx, 1, nil))[0].Body, body), "the peeked body differs")
	message := b.one(receiver)
	expect(bytes.Equal(message.Body, body), "the received body differs")
	b.complete(receiver, message)
}

func messageTooLarge(b *bench) {
	queue := b.queue(nil)
	sender := b.sender(queue)
	batch := must(sender.NewMessageBatch(b.ctx, nil))
	body, size := bytes.Repeat([]byte("x"), 1<<20), 0
	for range 100 {
		err := batch.AddMessage(&azservicebus.Message{Body: body}, nil)
		if errors.Is(err, azservicebus.ErrMessageTooLarge) {
			break
		}
		check(err)
		size += len(body)
	}
	expect(size < 100<<20, "no limit to the size of a batch")
	err := sender.SendMessage(b.ctx, &azservicebus.Message{Body: make([]byte, size+2<<20)}, nil)
	expect(errors.Is(err, azservicebus.ErrMessageTooLarge), "want ErrMessageTooLarge, got %T: %v", err, err)
	check(sender.SendMessage(b.ctx, text("still fine"), nil))
	equal("body", string(b.one(b.receiver(queue)).Body), "still fine")
}

func missingQueue(b *bench) {
	absent := b.prefix + "-absent"
	code(b.sender(absent).SendMessage(b.ctx, text("x"), nil), azservicebus.CodeNotFound)
	_, err := b.receiver(absent).ReceiveMessages(b.ctx, 1, nil)
	code(err, azservicebus.CodeNotFound)
	_, err = must(b.client.NewReceiverForSubscription(absent, "s", nil)).ReceiveMessages(b.ctx, 1, nil)
	code(err, azservicebus.CodeNotFound)
	_, err = b.client.AcceptSessionForQueue(b.ctx, absent, "s", nil)
	code(err, azservicebus.CodeNotFound)
}

func wrongKey(b *bench) {
	queue := b.queue(nil)
	client := b.connect(withWrongKey())
	code(must(client.NewSender(queue, nil)).SendMessage(b.ctx, text("x"), nil), azservicebus.CodeUnauthorizedAccess)
	_, err := must(client.NewReceiverForQueue(queue, nil)).ReceiveMessages(b.ctx, 1, nil)
	code(err, azservicebus.CodeUnauthorizedAccess)
}

func entityDisabled(b *bench) {
	queue := b.queue(&admin.QueueProperties{Status: ptr(admin.EntityStatusSendDisabled)})
	disabled := func(err error) {
		var amqpErr *amqp.Error
		expect(errors.As(err, &amqpErr), "want an AMQP error, got %T: %v", err, err)
		equal("condition", string(amqpErr.Condition), "com.microsoft:entity-disabled")
	}
	disabled(b.sender(queue).SendMessage(b.ctx, text("x"), nil))
	properties := must(b.admin.GetQueue(b.ctx, queue, nil)).QueueProperties
	properties.Status = ptr(admin.EntityStatusReceiveDisabled)
	must(b.admin.UpdateQueue(b.ctx, queue, properties, nil))
	b.send(queue, text("x"))
	_, err := b.receiver(queue).ReceiveMessages(b.ctx, 1, nil)
	disabled(err)
}
