package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// failure is what a broken expectation panics with; the runner turns it into the case's detail.
type failure string

func fail(format string, args ...any) {
	panic(failure(fmt.Sprintf(format, args...)))
}

func expect(condition bool, format string, args ...any) {
	if !condition {
		fail(format, args...)
	}
}

func equal[T comparable](what string, got, want T) {
	expect(got == want, "%s: got %v, want %v", what, got, want)
}

func sameList[T comparable](what string, got, want []T) {
	expect(slices.Equal(got, want), "%s: got %v, want %v", what, got, want)
}

func check(err error) {
	if err != nil {
		fail("%T: %v", err, err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// code asserts that err is the SDK's own error with this code.
func code(err error, want azservicebus.Code) {
	var sbErr *azservicebus.Error
	expect(errors.As(err, &sbErr), "want an azservicebus.Error %q, got %T: %v", want, err, err)
	expect(sbErr.Code == want, "want code %q, got %q: %v", want, sbErr.Code, err)
}

// status asserts that err is a response of the administration service with this status.
func status(err error, want int) {
	var response *azcore.ResponseError
	expect(errors.As(err, &response), "want status %d, got %T: %v", want, err, err)
	expect(response.StatusCode == want, "want status %d, got %d", want, response.StatusCode)
}

func ptr[T any](value T) *T { return &value }

// bench is what one case has to itself: a client, an administration client and entity names nobody else uses.
type bench struct {
	ctx     context.Context
	prefix  string
	client  *azservicebus.Client
	clients []*azservicebus.Client
	admin   *admin.Client
}

func newBench(ctx context.Context, name string) *bench {
	random := make([]byte, 3)
	_, _ = rand.Read(random)
	b := &bench{ctx: ctx, prefix: "go-" + strings.ReplaceAll(name, "_", "-") + "-" + hex.EncodeToString(random)}
	b.client = b.connect(connectionString())
	b.admin = administration(connectionString())
	return b
}

func connectionString() string { return os.Getenv("LOCALBUS") }

func withWrongKey() string {
	return regexp.MustCompile(`SharedAccessKey=[^;]*`).ReplaceAllString(connectionString(),
		"SharedAccessKey=BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=")
}

func (b *bench) connect(connectionString string) *azservicebus.Client {
	client := must(azservicebus.NewClientFromConnectionString(connectionString, &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: 1, RetryDelay: 100 * time.Millisecond},
	}))
	b.clients = append(b.clients, client)
	return client
}

func administration(connectionString string) *admin.Client {
	roots := x509.NewCertPool()
	expect(roots.AppendCertsFromPEM(must(os.ReadFile(os.Getenv("LOCALBUS_CA")))), "LOCALBUS_CA holds no certificate")
	options := &admin.ClientOptions{}
	options.Transport = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	options.Retry.MaxRetries = -1
	return must(admin.NewClientFromConnectionString(connectionString, options))
}

func (b *bench) queue(properties *admin.QueueProperties) string { return b.queueNamed("q", properties) }

func (b *bench) queueNamed(suffix string, properties *admin.QueueProperties) string {
	name := b.prefix + "-" + suffix
	must(b.admin.CreateQueue(b.ctx, name, &admin.CreateQueueOptions{Properties: properties}))
	return name
}

type subscriptions map[string]*admin.SubscriptionProperties

func (b *bench) topic(subs subscriptions) string {
	name := b.prefix + "-t"
	must(b.admin.CreateTopic(b.ctx, name, nil))
	for sub, properties := range subs {
		must(b.admin.CreateSubscription(b.ctx, name, sub, &admin.CreateSubscriptionOptions{Properties: properties}))
	}
	return name
}

func onlyRule(filter admin.RuleFilter, action admin.RuleAction) *admin.SubscriptionProperties {
	return &admin.SubscriptionProperties{DefaultRule: &admin.RuleProperties{Name: "only", Filter: filter, Action: action}}
}

func (b *bench) sender(entity string) *azservicebus.Sender {
	return must(b.client.NewSender(entity, nil))
}

func (b *bench) send(entity string, messages ...*azservicebus.Message) {
	sender := b.sender(entity)
	for _, message := range messages {
		check(sender.SendMessage(b.ctx, message, nil))
	}
	check(sender.Close(b.ctx))
}

func (b *bench) receiver(queue string) *azservicebus.Receiver {
	return must(b.client.NewReceiverForQueue(queue, nil))
}

func (b *bench) deadLetters(queue string) *azservicebus.Receiver {
	return must(b.client.NewReceiverForQueue(queue, &azservicebus.ReceiverOptions{
		SubQueue: azservicebus.SubQueueDeadLetter,
	}))
}

func (b *bench) deleting(queue string) *azservicebus.Receiver {
	return must(b.client.NewReceiverForQueue(queue, &azservicebus.ReceiverOptions{
		ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete,
	}))
}

func (b *bench) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for _, client := range b.clients {
		_ = client.Close(ctx)
	}
}

// receiving is what Receiver and SessionReceiver have in common.
type receiving interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
	CompleteMessage(context.Context, *azservicebus.ReceivedMessage, *azservicebus.CompleteMessageOptions) error
}

// receive returns exactly count messages, however many receives that takes.
func (b *bench) receive(from receiving, count int) []*azservicebus.ReceivedMessage {
	ctx, cancel := context.WithTimeout(b.ctx, 12*time.Second)
	defer cancel()
	var messages []*azservicebus.ReceivedMessage
	for len(messages) < count {
		more, err := from.ReceiveMessages(ctx, count-len(messages), nil)
		expect(err == nil, "received %d of %d messages: %v", len(messages), count, err)
		messages = append(messages, more...)
	}
	return messages
}

func (b *bench) one(from receiving) *azservicebus.ReceivedMessage { return b.receive(from, 1)[0] }

func (b *bench) complete(from receiving, messages ...*azservicebus.ReceivedMessage) {
	for _, message := range messages {
		check(from.CompleteMessage(b.ctx, message, nil))
	}
}

func (b *bench) nothingMore(from receiving) {
	ctx, cancel := context.WithTimeout(b.ctx, 700*time.Millisecond)
	defer cancel()
	messages, err := from.ReceiveMessages(ctx, 1, nil)
	expect(len(messages) == 0, "unexpected message %v", bodies(messages))
	expect(errors.Is(err, context.DeadlineExceeded), "want to wait in vain, got %T: %v", err, err)
}

// drain empties a subscription and returns the sorted bodies.
func (b *bench) drain(topic, subscription string) []string {
	receiver := must(b.client.NewReceiverForSubscription(topic, subscription, &azservicebus.ReceiverOptions{
		ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete,
	}))
	seen := []string{}
	for {
		ctx, cancel := context.WithTimeout(b.ctx, time.Second)
		messages, err := receiver.ReceiveMessages(ctx, 20, nil)
		cancel()
		if err != nil {
			expect(errors.Is(err, context.DeadlineExceeded), "%T: %v", err, err)
			slices.Sort(seen)
			return seen
		}
		seen = append(seen, bodies(messages)...)
	}
}

func (b *bench) counts(queue string) admin.QueueRuntimeProperties {
	response := must(b.admin.GetQueueRuntimeProperties(b.ctx, queue, nil))
	expect(response != nil, "no runtime properties of %s", queue)
	return response.QueueRuntimeProperties
}

func (b *bench) eventuallyEmpty(queue string) {
	for end := time.Now().Add(10 * time.Second); b.counts(queue).TotalMessageCount != 0; {
		expect(time.Now().Before(end), "%s is not empty: %+v", queue, b.counts(queue))
		time.Sleep(200 * time.Millisecond)
	}
}

func text(body string) *azservicebus.Message { return &azservicebus.Message{Body: []byte(body)} }

func bodies(messages []*azservicebus.ReceivedMessage) []string {
	list := []string{}
	for _, message := range messages {
		list = append(list, string(message.Body))
	}
	return list
}

func near(at time.Time, base time.Time, tolerance time.Duration) bool {
	return at.Sub(base).Abs() <= tolerance
}
