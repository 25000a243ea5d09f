// Runs Microsoft's Service Bus SDK for JavaScript, unmodified, against localbus: one JSON line per case,
// exit code 0 if and only if every case is ok. Arguments name the cases to run; none means all.
//
//   LOCALBUS     connection string (UseDevelopmentEmulator=true)
//   NODE_EXTRA_CA_CERTS  the CA file of localbus, for the administration client
//   LOCALBUS_INTEROP  prefix of two queues that the caller made: what waits in "-in" is sent on to "-out" (optional)
//   CONCURRENCY  cases at a time (4)

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { ServiceBusAdministrationClient, ServiceBusClient, isServiceBusError } from "@azure/service-bus";
import Long from "long";
import rhea from "rhea";

const CONNECTION_STRING = process.env.LOCALBUS;
const CASE_LIMIT_MS = 30_000;
const { types } = rhea;

const cases = new Map();
const define = (name, run) => cases.set(name, run);

/** What one case has to itself: a client, an administration client and entity names nobody else uses. */
class Bench {
  constructor(name) {
    this.prefix = `js-${name.replaceAll("_", "-")}-${randomUUID().slice(0, 6)}`;
    this.admin = administration(CONNECTION_STRING);
    this.client = this.connect();
    this.clients = [this.client];
  }

  connect(connectionString = CONNECTION_STRING, retryOptions = {}) {
    const client = new ServiceBusClient(connectionString, {
      retryOptions: { timeoutInMs: 10_000, maxRetries: 1, retryDelayInMs: 100, ...retryOptions },
    });
    this.clients?.push(client);
    return client;
  }

  async queue(options = {}, suffix = "q") {
    const name = `${this.prefix}-${suffix}`;
    await this.admin.createQueue(name, options);
    return name;
  }

  async topic(subscriptions = { s: {} }, options = {}) {
    const name = `${this.prefix}-t`;
    await this.admin.createTopic(name, options);
    for (const [subscription, settings] of Object.entries(subscriptions))
      await this.admin.createSubscription(name, subscription, settings);
    return name;
  }

  async close() {
    await Promise.allSettled(this.clients.map((client) => client.close()));
  }
}

const administration = (connectionString) =>
  new ServiceBusAdministrationClient(connectionString, { retryOptions: { maxRetries: 1, retryDelayInMs: 100 } });

/** Exactly `count` messages, however many receives that takes. */
async function receive(receiver, count = 1, limitMs = 10_000) {
  const messages = [];
  const end = Date.now() + limitMs;
  while (messages.length < count && Date.now() < end) {
    const wait = Math.max(100, end - Date.now());
    messages.push(...(await receiver.receiveMessages(count - messages.length, { maxWaitTimeInMs: wait })));
  }
  assert.equal(messages.length, count, `received ${messages.length} of ${count} messages`);
  return messages;
}

async function nothingMore(receiver, waitMs = 600) {
  const messages = await receiver.receiveMessages(1, { maxWaitTimeInMs: waitMs });
  assert.deepEqual(messages.map((m) => m.body), [], "unexpected message");
}

async function serviceBusError(promise, ...codes) {
  const error = await promise.then(
    (value) => assert.fail(`expected ${codes}, but the call succeeded with ${JSON.stringify(value)}`),
    (reason) => reason,
  );
  assert.ok(isServiceBusError(error), `expected a ServiceBusError ${codes}, got ${error?.name}: ${error?.message}`);
  assert.ok(codes.includes(error.code), `expected ${codes}, got ${error.code}: ${error.message}`);
  return error;
}

async function restError(promise, ...statusCodes) {
  const error = await promise.then(
    () => assert.fail(`expected status ${statusCodes}, but the call succeeded`),
    (reason) => reason,
  );
  assert.ok(
    statusCodes.includes(error.statusCode),
    `expected status ${statusCodes}, got ${error.statusCode}: ${error?.name}: ${error?.message}`,
  );
  return error;
}

async function eventually(probe, what, limitMs = 10_000) {
  const end = Date.now() + limitMs;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (Date.now() > end) assert.fail(`not within ${limitMs} ms: ${what}`);
    await sleep(200);
  }
}

async function collect(iterator) {
  const items = [];
  for await (const item of iterator) items.push(item);
  return items;
}

const bodies = (messages) => messages.map((message) => message.body);
const near = (date, base, toleranceMs) => Math.abs(date.getTime() - base) <= toleranceMs;

// ---------------------------------------------------------------- queues

define("send_receive_complete", async (bench) => {
  const queue = await bench.queue();
  await bench.client.createSender(queue).sendMessages({ body: { hello: "wörld" }, messageId: "m1" });
  const receiver = bench.client.createReceiver(queue);
  const [message] = await receive(receiver);
  assert.deepEqual(message.body, { hello: "wörld" });
  assert.equal(message.deliveryCount, 0);
  await receiver.completeMessage(message);
  await nothingMore(receiver);
});

define("system_properties", async (bench) => {
  const queue = await bench.queue();
  const sent = {
    messageId: "id-1",
    correlationId: "corr-1",
    subject: "a subject",
    contentType: "text/plain",
    to: "somewhere",
    replyTo: "back",
    replyToSessionId: "back-session",
    partitionKey: "pk",
    timeToLive: 60_000,
  };
  const before = Date.now();
  const sender = bench.client.createSender(queue);
  await sender.sendMessages({ body: Buffer.from("one"), ...sent });
  await sender.sendMessages({ body: Buffer.from("two") });
  const receiver = bench.client.createReceiver(queue);
  const [first, second] = await receive(receiver, 2);
  for (const [key, value] of Object.entries(sent)) assert.equal(first[key], value, key);
  assert.ok(near(first.enqueuedTimeUtc, before, 5_000), `enqueued at ${first.enqueuedTimeUtc}`);
  assert.ok(near(first.lockedUntilUtc, before + 60_000, 8_000), `locked until ${first.lockedUntilUtc}`);
  assert.ok(near(first.expiresAtUtc, before + 60_000, 8_000), `expires at ${first.expiresAtUtc}`);
  assert.ok(second.sequenceNumber.greaterThan(first.sequenceNumber), "sequence numbers grow");
  assert.equal(first.state, "active");
  assert.match(first.lockToken, /^[0-9a-f-]{36}$/);
  assert.ok(second.messageId, "the service gives an id to a message without one");
  for (const message of [first, second]) await receiver.completeMessage(message);
});

define("batch_send", async (bench) => {
  const queue = await bench.queue();
  const sender = bench.client.createSender(queue);
  const batch = await sender.createMessageBatch();
  for (let i = 0; i < 20; i++)
    assert.ok(batch.tryAddMessage({ body: i, messageId: `b${i}`, subject: `s${i}`, applicationProperties: { i } }));
  await sender.sendMessages(batch);
  await sender.sendMessages([{ body: 20 }, { body: 21 }]);
  const receiver = bench.client.createReceiver(queue);
  const messages = await receive(receiver, 22);
  assert.deepEqual(bodies(messages), [...Array(22).keys()]);
  assert.equal(messages[7].messageId, "b7");
  assert.equal(messages[7].subject, "s7");
  assert.equal(messages[7].applicationProperties.i, 7);
  for (const message of messages) await receiver.completeMessage(message);
  await nothingMore(receiver);
});

define("drain_500", async (bench) => {
  const queue = await bench.queue();
  const sender = bench.client.createSender(queue);
  await sender.sendMessages([...Array(500).keys()].map((i) => ({ body: i })));
  const receiver = bench.client.createReceiver(queue);
  const seen = new Set();
  while (seen.size < 500) {
    const messages = await receiver.receiveMessages(100, { maxWaitTimeInMs: 5_000 });
    assert.ok(messages.length > 0, `stopped after ${seen.size}`);
    await Promise.all(messages.map((message) => receiver.completeMessage(message)));
    for (const message of messages) seen.add(message.body);
  }
  const counts = await bench.admin.getQueueRuntimeProperties(queue);
  assert.equal(counts.totalMessageCount, 0);
});

define("abandon_with_properties", async (bench) => {
  const queue = await bench.queue();
  await bench.client.createSender(queue).sendMessages({ body: "x", applicationProperties: { kept: "yes", changed: 1 } });
  const receiver = bench.client.createReceiver(queue);
  const [first] = await receive(receiver);
  await receiver.abandonMessage(first, { changed: 2, added: "new" });
  const [second] = await receive(receiver);
  assert.equal(second.deliveryCount, 1);
  assert.deepEqual({ ...second.applicationProperties }, { kept: "yes", changed: 2, added: "new" });
  assert.ok(second.sequenceNumber.equals(first.sequenceNumber));
  await receiver.completeMessage(second);
});

define("max_delivery_count", async (bench) => {
  const queue = await bench.queue({ maxDeliveryCount: 2 });
  await bench.client.createSender(queue).sendMessages({ body: "poison" });
  const receiver = bench.client.createReceiver(queue);
  for (let i = 0; i < 2; i++) await receiver.abandonMessage((await receive(receiver))[0]);
  const dead = bench.client.createReceiver(queue, { subQueueType: "deadLetter" });
  const [message] = await receive(dead);
  assert.equal(message.deadLetterReason, "MaxDeliveryCountExceeded");
  await dead.completeMessage(message);
  await nothingMore(receiver);
});

define("defer_receive_by_sequence_number", async (bench) => {
  const queue = await bench.queue();
  await bench.client.createSender(queue).sendMessages([{ body: "a" }, { body: "b" }]);
  const receiver = bench.client.createReceiver(queue);
  const [a, b] = await receive(receiver, 2);
  await receiver.deferMessage(a, { why: "later" });
  await receiver.completeMessage(b);
  await nothingMore(receiver);
  const [peeked] = await receiver.peekMessages(1, { fromSequenceNumber: Long.ZERO });
  assert.equal(peeked.state, "deferred");
  const [deferred] = await receiver.receiveDeferredMessages(a.sequenceNumber);
  assert.equal(deferred.body, "a");
  assert.equal(deferred.applicationProperties.why, "later");
  await receiver.completeMessage(deferred);
  await serviceBusError(receiver.receiveDeferredMessages(a.sequenceNumber), "MessageNotFound");
});

define("dead_letter", async (bench) => {
  const queue = await bench.queue();
  await bench.client.createSender(queue).sendMessages({ body: "bad", applicationProperties: { n: 1 } });
  const receiver = bench.client.createReceiver(queue);
  const [message] = await receive(receiver);
  await receiver.deadLetterMessage(message, {
    deadLetterReason: "broken",
    deadLetterErrorDescription: "it does not parse",
    extra: "seen",
  });
  const dead = bench.client.createReceiver(queue, { subQueueType: "deadLetter" });
  const [buried] = await receive(dead);
  assert.equal(buried.body, "bad");
  assert.equal(buried.deadLetterReason, "broken");
  assert.equal(buried.deadLetterErrorDescription, "it does not parse");
  assert.equal(buried.applicationProperties.n, 1);
  assert.equal(buried.applicationProperties.extra, "seen");
  await dead.completeMessage(buried);
  await nothingMore(dead);
});

define("peek", async (bench) => {
  const queue = await bench.queue();
  await bench.client.createSender(queue).sendMessages([0, 1, 2, 3, 4].map((body) => ({ body })));
  const receiver = bench.client.createReceiver(queue);
  const first = await receiver.peekMessages(2);
  const rest = await receiver.peekMessages(10);
  assert.deepEqual(bodies(first), [0, 1]);
  assert.deepEqual(bodies(rest), [2, 3, 4]);
  const again = await receiver.peekMessages(2, { fromSequenceNumber: rest[1].sequenceNumber });
  assert.deepEqual(bodies(again), [3, 4]);
  assert.deepEqual(bodies(await receiver.peekMessages(5)), []);
  assert.equal((await receive(receiver, 5))[0].deliveryCount, 0);
});

define("schedule_and_cancel", async (bench) => {
  const queue = await bench.queue();
  const sender = bench.client.createSender(queue);
  const at = new Date(Date.now() + 2_500);
  const numbers = await sender.scheduleMessages([{ body: "stays" }, { body: "goes" }], at);
  assert.equal(numbers.length, 2);
  const receiver = bench.client.createReceiver(queue);
  const peeked = await receiver.peekMessages(5);
  assert.deepEqual(peeked.map((m) => m.state), ["scheduled", "scheduled"]);
  assert.equal((await bench.admin.getQueueRuntimeProperties(queue)).scheduledMessageCount, 2);
  await sender.cancelScheduledMessages(numbers[1]);
  await nothingMore(receiver, 500);
  const [message] = await receive(receiver);
  assert.equal(message.body, "stays");
  assert.ok(Date.now() >= at.getTime() - 200, "arrived too early");
  await receiver.completeMessage(message);
  await nothingMore(receiver);
});

define("scheduled_by_property", async (bench) => {
  const queue = await bench.queue();
  const at = new Date(Date.now() + 2_000);
  await bench.client.createSender(queue).sendMessages({ body: "later", scheduledEnqueueTimeUtc: at });
  const receiver = bench.client.createReceiver(queue);
  await nothingMore(receiver, 500);
  const [message] = await receive(receiver);
  assert.ok(Date.now() >= at.getTime() - 200, "arrived too early");
  await receiver.completeMessage(message);
});

define("renew_lock", async (bench) => {
  const queue = await bench.queue({ lockDuration: "PT5S" });
  await bench.client.createSender(queue).sendMessages({ body: "slow" });
  const receiver = bench.client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
  const [message] = await receive(receiver);
  const before = message.lockedUntilUtc.getTime();
  await sleep(3_000);
  const until = await receiver.renewMessageLock(message);
  assert.ok(until.getTime() > before + 1_500, `${until} is not later than ${new Date(before)}`);
  await sleep(3_500);
  await receiver.completeMessage(message);
  await nothingMore(receiver);
});

define("lock_expiry", async (bench) => {
  const queue = await bench.queue({ lockDuration: "PT5S" });
  await bench.client.createSender(queue).sendMessages({ body: "slow" });
  const receiver = bench.client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
  const [first] = await receive(receiver);
  const [second] = await receive(receiver, 1, 12_000);
  assert.equal(second.deliveryCount, 1);
  assert.notEqual(second.lockToken, first.lockToken);
  await serviceBusError(receiver.completeMessage(first), "MessageLockLost");
  await receiver.completeMessage(second);
  await nothingMore(receiver);
});

define("receive_and_delete", async (bench) => {
  const queue = await bench.queue();
  await bench.client.createSender(queue).sendMessages([{ body: 1 }, { body: 2 }]);
  const receiver = bench.client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(receiver, 2)), [1, 2]);
  await eventually(
    async () => (await bench.admin.getQueueRuntimeProperties(queue)).totalMessageCount === 0,
    "the queue is empty",
  );
});

define("streaming_receive", async (bench) => {
  const queue = await bench.queue();
  await bench.client.createSender(queue).sendMessages([...Array(30).keys()].map((body) => ({ body })));
  const receiver = bench.client.createReceiver(queue);
  const seen = [];
  const errors = [];
  const subscription = receiver.subscribe(
    {
      processMessage: async (message) => {
        seen.push(message.body);
        if (message.body === 7 && message.deliveryCount === 0) throw new Error("again, please");
      },
      processError: async ({ error }) => errors.push(error.message),
    },
    { maxConcurrentCalls: 5 },
  );
  await eventually(() => seen.length >= 31, "31 deliveries");
  await subscription.close();
  assert.equal(new Set(seen).size, 30);
  assert.deepEqual(errors, ["again, please"]);
  await eventually(
    async () => (await bench.admin.getQueueRuntimeProperties(queue)).totalMessageCount === 0,
    "all are completed",
  );
});

define("ttl_dead_letter", async (bench) => {
  const queue = await bench.queue({ deadLetteringOnMessageExpiration: true });
  await bench.client.createSender(queue).sendMessages({ body: "brief", timeToLive: 1_000 });
  const dead = bench.client.createReceiver(queue, { subQueueType: "deadLetter" });
  const [message] = await receive(dead, 1, 15_000);
  assert.equal(message.body, "brief");
  assert.equal(message.deadLetterReason, "TTLExpiredException");
  await dead.completeMessage(message);
});

define("ttl_of_entity_discards", async (bench) => {
  const queue = await bench.queue({ defaultMessageTimeToLive: "PT1S" });
  await bench.client.createSender(queue).sendMessages({ body: "brief" });
  await sleep(1_500);
  await nothingMore(bench.client.createReceiver(queue));
  await nothingMore(bench.client.createReceiver(queue, { subQueueType: "deadLetter" }));
});

define("duplicate_detection", async (bench) => {
  const queue = await bench.queue({ requiresDuplicateDetection: true, duplicateDetectionHistoryTimeWindow: "PT1M" });
  const sender = bench.client.createSender(queue);
  for (const body of ["first", "again"]) await sender.sendMessages({ body, messageId: "same" });
  await sender.sendMessages([{ body: "batched", messageId: "same" }, { body: "other", messageId: "different" }]);
  const receiver = bench.client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(receiver, 2)), ["first", "other"]);
  await nothingMore(receiver);
});

define("auto_forward", async (bench) => {
  const target = await bench.queue({}, "target");
  const source = await bench.queue({ forwardTo: target }, "source");
  await bench.client.createSender(source).sendMessages({ body: "onward", applicationProperties: { n: 1 } });
  const receiver = bench.client.createReceiver(target);
  const [message] = await receive(receiver);
  assert.equal(message.body, "onward");
  assert.equal(message.applicationProperties.n, 1);
  await receiver.completeMessage(message);
});

// ---------------------------------------------------------------- sessions

define("session_named", async (bench) => {
  const queue = await bench.queue({ requiresSession: true });
  const sender = bench.client.createSender(queue);
  await sender.sendMessages([{ body: 1, sessionId: "a" }, { body: 2, sessionId: "b" }]);
  const receiver = await bench.client.acceptSession(queue, "b");
  assert.equal(receiver.sessionId, "b");
  const [message] = await receive(receiver);
  assert.equal(message.body, 2);
  assert.equal(message.sessionId, "b");
  await receiver.completeMessage(message);
  await nothingMore(receiver);
});

define("session_next", async (bench) => {
  const queue = await bench.queue({ requiresSession: true });
  const sender = bench.client.createSender(queue);
  await sender.sendMessages([{ body: 1, sessionId: "a" }, { body: 2, sessionId: "b" }]);
  const seen = {};
  for (let i = 0; i < 2; i++) {
    const receiver = await bench.client.acceptNextSession(queue);
    const [message] = await receive(receiver);
    seen[receiver.sessionId] = message.body;
    await receiver.completeMessage(message);
    await receiver.close();
  }
  assert.deepEqual(seen, { a: 1, b: 2 });
});

define("session_order", async (bench) => {
  const queue = await bench.queue({ requiresSession: true });
  const sender = bench.client.createSender(queue);
  await sender.sendMessages([...Array(20).keys()].map((i) => ({ body: i, sessionId: i % 2 ? "odd" : "even" })));
  const odd = await bench.client.acceptSession(queue, "odd");
  const even = await bench.client.acceptSession(queue, "even");
  const expected = [...Array(10).keys()];
  const gotOdd = await receive(odd, 10);
  const gotEven = await receive(even, 10);
  assert.deepEqual(bodies(gotOdd), expected.map((i) => 2 * i + 1));
  assert.deepEqual(bodies(gotEven), expected.map((i) => 2 * i));
  for (const message of gotOdd) await odd.completeMessage(message);
  for (const message of gotEven) await even.completeMessage(message);
});

define("session_state", async (bench) => {
  const queue = await bench.queue({ requiresSession: true });
  await bench.client.createSender(queue).sendMessages({ body: 1, sessionId: "s" });
  const receiver = await bench.client.acceptSession(queue, "s");
  assert.ok((await receiver.getSessionState()) == null, "there is a state already");
  await receiver.setSessionState({ step: 3, text: "é" });
  assert.deepEqual(await receiver.getSessionState(), { step: 3, text: "é" });
  await receiver.close();
  const again = await bench.client.acceptSession(queue, "s");
  assert.deepEqual(await again.getSessionState(), { step: 3, text: "é" });
  await again.setSessionState(null);
  assert.ok((await again.getSessionState()) == null, "the state was not cleared");
});

define("session_renew_lock", async (bench) => {
  const queue = await bench.queue({ requiresSession: true, lockDuration: "PT5S" });
  await bench.client.createSender(queue).sendMessages({ body: 1, sessionId: "s" });
  const receiver = await bench.client.acceptSession(queue, "s", { maxAutoLockRenewalDurationInMs: 0 });
  const before = receiver.sessionLockedUntilUtc.getTime();
  assert.ok(near(new Date(before), Date.now() + 5_000, 3_000), `locked until ${new Date(before)}`);
  const [message] = await receive(receiver);
  await sleep(3_000);
  const until = await receiver.renewSessionLock();
  assert.ok(until.getTime() > before + 1_500, `${until} is not later than ${new Date(before)}`);
  await sleep(3_500);
  await receiver.completeMessage(message);
});

define("session_lock_lost", async (bench) => {
  const queue = await bench.queue({ requiresSession: true, lockDuration: "PT5S" });
  await bench.client.createSender(queue).sendMessages({ body: 1, sessionId: "s" });
  const receiver = await bench.client.acceptSession(queue, "s", { maxAutoLockRenewalDurationInMs: 0 });
  const [message] = await receive(receiver);
  await sleep(6_500);
  await serviceBusError(receiver.completeMessage(message), "SessionLockLost");
  const again = await bench.client.acceptSession(queue, "s");
  await again.completeMessage((await receive(again))[0]);
});

define("session_next_timeout", async (bench) => {
  const queue = await bench.queue({ requiresSession: true });
  const client = bench.connect(CONNECTION_STRING, { timeoutInMs: 2_000, maxRetries: 0 });
  const started = Date.now();
  await serviceBusError(client.acceptNextSession(queue), "ServiceTimeout");
  const took = Date.now() - started;
  assert.ok(took >= 1_500 && took < 8_000, `took ${took} ms`);
});

define("session_cannot_be_locked", async (bench) => {
  const queue = await bench.queue({ requiresSession: true });
  const other = bench.connect(CONNECTION_STRING, { maxRetries: 0 });
  const holder = await bench.client.acceptSession(queue, "s");
  await serviceBusError(other.acceptSession(queue, "s"), "SessionCannotBeLocked");
  await holder.close();
  const next = await other.acceptSession(queue, "s");
  assert.equal(next.sessionId, "s");
});

define("session_rules_of_the_queue", async (bench) => {
  const queue = await bench.queue({ requiresSession: true });
  const client = bench.connect(CONNECTION_STRING, { maxRetries: 0, timeoutInMs: 4_000 });
  await assert.rejects(client.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 2_000 }));
  await assert.rejects(client.createSender(queue).sendMessages({ body: "without a session id" }));
});

define("session_defer_and_peek", async (bench) => {
  const queue = await bench.queue({ requiresSession: true });
  await bench.client.createSender(queue).sendMessages([
    { body: "a", sessionId: "s" },
    { body: "b", sessionId: "s" },
    { body: "c", sessionId: "other" },
  ]);
  const receiver = await bench.client.acceptSession(queue, "s");
  assert.deepEqual(bodies(await receiver.peekMessages(10)), ["a", "b"]);
  const [a, b] = await receive(receiver, 2);
  await receiver.deferMessage(a);
  await receiver.deadLetterMessage(b, { deadLetterReason: "r", deadLetterErrorDescription: "d" });
  const [deferred] = await receiver.receiveDeferredMessages(a.sequenceNumber);
  await receiver.completeMessage(deferred);
  const dead = bench.client.createReceiver(queue, { subQueueType: "deadLetter" });
  const [buried] = await receive(dead);
  assert.equal(buried.sessionId, "s");
  await dead.completeMessage(buried);
});

// ---------------------------------------------------------------- topics

async function subscriptionBodies(bench, topic, subscription) {
  const receiver = bench.client.createReceiver(topic, subscription, { receiveMode: "receiveAndDelete" });
  const messages = [];
  for (;;) {
    const more = await receiver.receiveMessages(20, { maxWaitTimeInMs: messages.length ? 500 : 1_500 });
    if (!more.length) return bodies(messages).sort();
    messages.push(...more);
  }
}

define("topic_default_rule", async (bench) => {
  const topic = await bench.topic({ s1: {}, s2: {} });
  await bench.client.createSender(topic).sendMessages([{ body: "a" }, { body: "b" }]);
  for (const subscription of ["s1", "s2"])
    assert.deepEqual(await subscriptionBodies(bench, topic, subscription), ["a", "b"]);
  assert.deepEqual((await collect(bench.admin.listRules(topic, "s1"))).map((r) => r.name), ["$Default"]);
});

define("topic_sql_filter", async (bench) => {
  const rule = (sqlExpression, sqlParameters) => ({
    defaultRuleOptions: { name: "only", filter: { sqlExpression, sqlParameters } },
  });
  const topic = await bench.topic({
    big: rule("amount > 100 AND region = 'EU'"),
    like: rule("sys.Label LIKE 'order%' AND region IN ('US', 'EU')"),
    absent: rule("NOT EXISTS(amount) OR amount IS NULL"),
    parameter: rule("amount >= @limit", { "@limit": 100 }),
    never: rule("1=0"),
  });
  await bench.client.createSender(topic).sendMessages([
    { body: "a", subject: "order.new", applicationProperties: { amount: 150, region: "EU" } },
    { body: "b", subject: "order.old", applicationProperties: { amount: 50, region: "EU" } },
    { body: "c", subject: "refund", applicationProperties: { amount: 100.5, region: "US" } },
    { body: "d", subject: "order.x", applicationProperties: { region: "US" } },
  ]);
  assert.deepEqual(await subscriptionBodies(bench, topic, "big"), ["a"]);
  assert.deepEqual(await subscriptionBodies(bench, topic, "like"), ["a", "b", "d"]);
  assert.deepEqual(await subscriptionBodies(bench, topic, "absent"), ["d"]);
  assert.deepEqual(await subscriptionBodies(bench, topic, "parameter"), ["a", "c"]);
  assert.deepEqual(await subscriptionBodies(bench, topic, "never"), []);
});

define("topic_correlation_filter", async (bench) => {
  const rule = (filter) => ({ defaultRuleOptions: { name: "only", filter } });
  const topic = await bench.topic({
    id: rule({ correlationId: "c1" }),
    many: rule({ subject: "s", contentType: "t", applicationProperties: { colour: "red", size: 3 } }),
  });
  await bench.client.createSender(topic).sendMessages([
    { body: "a", correlationId: "c1" },
    { body: "b", correlationId: "c2", subject: "s", contentType: "t", applicationProperties: { colour: "red", size: 3 } },
    { body: "c", correlationId: "c1", subject: "s", contentType: "t", applicationProperties: { colour: "blue", size: 3 } },
  ]);
  assert.deepEqual(await subscriptionBodies(bench, topic, "id"), ["a", "c"]);
  assert.deepEqual(await subscriptionBodies(bench, topic, "many"), ["b"]);
});

define("topic_sql_action", async (bench) => {
  const topic = await bench.topic({
    s: {
      defaultRuleOptions: {
        name: "act",
        filter: { sqlExpression: "1=1" },
        action: { sqlExpression: "SET quantity = quantity * 2; SET sys.Label = 'changed'; REMOVE secret" },
      },
    },
  });
  await bench.client
    .createSender(topic)
    .sendMessages({ body: "a", subject: "before", applicationProperties: { quantity: 21, secret: "x" } });
  const receiver = bench.client.createReceiver(topic, "s");
  const [message] = await receive(receiver);
  assert.equal(message.subject, "changed");
  assert.deepEqual({ ...message.applicationProperties }, { quantity: 42, RuleName: "act" });
  await receiver.completeMessage(message);
});

define("topic_rule_manager", async (bench) => {
  const topic = await bench.topic({ s: {} });
  const manager = bench.client.createRuleManager(topic, "s");
  const names = async () => (await collect(manager.listRules())).map((rule) => rule.name).sort();
  assert.deepEqual(await names(), ["$Default"]);
  await manager.deleteRule("$Default");
  await manager.createRule("sql", { sqlExpression: "n = 1" }, { sqlExpression: "SET tagged = 'yes'" });
  await manager.createRule("correlation", { subject: "two", applicationProperties: { k: "v" } });
  assert.deepEqual(await names(), ["correlation", "sql"]);
  const rules = await collect(manager.listRules());
  const sql = rules.find((rule) => rule.name === "sql");
  assert.equal(sql.filter.sqlExpression, "n = 1");
  assert.equal(sql.action.sqlExpression, "SET tagged = 'yes'");
  const correlation = rules.find((rule) => rule.name === "correlation");
  assert.equal(correlation.filter.subject, "two");
  assert.equal(correlation.filter.applicationProperties.k, "v");
  await bench.client.createSender(topic).sendMessages([
    { body: "a", applicationProperties: { n: 1 } },
    { body: "b", applicationProperties: { n: 2 } },
    { body: "c", subject: "two", applicationProperties: { k: "v" } },
  ]);
  const receiver = bench.client.createReceiver(topic, "s", { receiveMode: "receiveAndDelete" });
  const messages = await receive(receiver, 2);
  assert.deepEqual(bodies(messages), ["a", "c"]);
  assert.equal(messages[0].applicationProperties.tagged, "yes");
  await serviceBusError(manager.createRule("sql", { sqlExpression: "1=1" }), "MessagingEntityAlreadyExists");
  await serviceBusError(manager.deleteRule("absent"), "MessagingEntityNotFound");
});

define("topic_subscription_dead_letter", async (bench) => {
  const topic = await bench.topic({ s1: {}, s2: {} });
  await bench.client.createSender(topic).sendMessages({ body: "x" });
  const receiver = bench.client.createReceiver(topic, "s1");
  const [message] = await receive(receiver);
  await receiver.deadLetterMessage(message, { deadLetterReason: "r", deadLetterErrorDescription: "d" });
  const dead = bench.client.createReceiver(topic, "s1", { subQueueType: "deadLetter" });
  const [buried] = await receive(dead);
  assert.equal(buried.deadLetterReason, "r");
  await dead.completeMessage(buried);
  await nothingMore(bench.client.createReceiver(topic, "s2", { subQueueType: "deadLetter" }));
  assert.deepEqual(await subscriptionBodies(bench, topic, "s2"), ["x"]);
});

define("topic_sessions_and_schedule", async (bench) => {
  const topic = await bench.topic({ s: { requiresSession: true } });
  const sender = bench.client.createSender(topic);
  await sender.scheduleMessages({ body: "later", sessionId: "one" }, new Date(Date.now() + 1_500));
  const receiver = await bench.client.acceptNextSession(topic, "s");
  assert.equal(receiver.sessionId, "one");
  const [message] = await receive(receiver);
  assert.equal(message.body, "later");
  await receiver.completeMessage(message);
});

// ---------------------------------------------------------------- fidelity

define("property_types", async (bench) => {
  const queue = await bench.queue();
  const when = new Date("2026-02-03T04:05:06.789Z");
  const plain = {
    text: "grüße ✓",
    empty: "",
    yes: true,
    no: false,
    zero: 0,
    small: 7,
    negative: -7,
    int32: 2147483647,
    minInt32: -2147483648,
    uint32: 4294967295,
    big: 2 ** 50,
    negativeBig: -(2 ** 50),
    double: 3.141592653589793,
    nothing: null,
  };
  const uuid = Buffer.from("00112233445566778899aabbccddeeff", "hex");
  const typed = {
    byte: types.wrap_byte(-8),
    ubyte: types.wrap_ubyte(200),
    short: types.wrap_short(-300),
    ushort: types.wrap_ushort(60000),
    int: types.wrap_int(-70000),
    uint: types.wrap_uint(70000),
    long: types.wrap_long(-(2 ** 40)),
    ulong: types.wrap_ulong(2 ** 40),
    float: types.wrap_float(1.5),
    uuid: types.wrap_uuid(uuid),
    symbol: types.wrap_symbol("sym"),
    bytes: types.wrap_binary(Buffer.from([0, 1, 254, 255])),
  };
  await bench.client
    .createSender(queue)
    .sendMessages({ body: "x", applicationProperties: { ...plain, ...typed, when } });
  const receiver = bench.client.createReceiver(queue, { skipConvertingDate: true });
  const [message] = await receive(receiver);
  const got = message.applicationProperties;
  for (const [key, value] of Object.entries(plain)) assert.deepEqual(got[key], value, key);
  const expected = {
    byte: -8, ubyte: 200, short: -300, ushort: 60000, int: -70000, uint: 70000,
    long: -(2 ** 40), ulong: 2 ** 40, float: 1.5, symbol: "sym",
  };
  for (const [key, value] of Object.entries(expected)) assert.equal(got[key]?.valueOf(), value, key);
  assert.equal(Buffer.from(got.uuid).toString("hex"), uuid.toString("hex"), "uuid");
  assert.equal(Buffer.from(got.bytes).toString("hex"), "0001feff", "bytes");
  assert.equal(new Date(got.when).getTime(), when.getTime(), "date");
  assert.equal(Object.keys(got).length, Object.keys({ ...plain, ...typed, when }).length, "nothing lost, nothing added");
  await receiver.completeMessage(message);
});

define("body_types", async (bench) => {
  const queue = await bench.queue();
  const sender = bench.client.createSender(queue);
  await sender.sendMessages({ body: Buffer.from([0, 255, 1, 254]) });
  await sender.sendMessages({ bodyType: "value", body: "a value", properties: { messageId: "v" } });
  await sender.sendMessages({ bodyType: "value", body: { a: 1, b: ["x", true] }, properties: { messageId: "m" } });
  await sender.sendMessages({ bodyType: "sequence", body: ["x", 2, true], properties: { messageId: "s" } });
  await sender.sendMessages({
    bodyType: "data",
    body: "annotated",
    properties: { messageId: "d", userId: "me", groupSequence: 4 },
    messageAnnotations: { "x-custom": "mine" },
    footer: { tail: "end" },
    header: { priority: 7, durable: true },
  });
  const receiver = bench.client.createReceiver(queue);
  const [bytes, value, map, sequence, data] = await receive(receiver, 5);
  assert.deepEqual([...bytes.body], [0, 255, 1, 254]);
  assert.equal(value._rawAmqpMessage.bodyType, "value");
  assert.equal(value.body, "a value");
  assert.deepEqual(JSON.parse(JSON.stringify(map.body)), { a: 1, b: ["x", true] });
  assert.equal(sequence._rawAmqpMessage.bodyType, "sequence");
  assert.deepEqual([...sequence.body].flat(), ["x", 2, true]);
  assert.equal(data.body, "annotated");
  assert.equal(data._rawAmqpMessage.messageAnnotations["x-custom"], "mine");
  assert.equal(data._rawAmqpMessage.footer.tail, "end");
  assert.equal(data._rawAmqpMessage.header.priority, 7);
  assert.equal(data._rawAmqpMessage.properties.groupSequence, 4);
  for (const message of [bytes, value, map, sequence, data]) await receiver.completeMessage(message);
});

define("large_message", async (bench) => {
  const queue = await bench.queue();
  const body = Buffer.alloc(200 * 1024, "0123456789abcdef");
  const sender = bench.client.createSender(queue);
  await sender.sendMessages({ body, messageId: "large" });
  const receiver = bench.client.createReceiver(queue);
  const [peeked] = await receiver.peekMessages(1);
  assert.ok(body.equals(peeked.body), "peeked body");
  const [message] = await receive(receiver);
  assert.ok(body.equals(message.body), "received body");
  await receiver.completeMessage(message);
});

if (process.env.LOCALBUS_INTEROP)
  define("interop_with_python", async (bench) => {
    const receiver = bench.client.createReceiver(`${process.env.LOCALBUS_INTEROP}-in`, { skipParsingBodyAsJson: true });
    const [message] = await receive(receiver);
    const { body, messageId, subject, applicationProperties } = message;
    await bench.client
      .createSender(`${process.env.LOCALBUS_INTEROP}-out`)
      .sendMessages({ body, messageId, subject, applicationProperties });
    await receiver.completeMessage(message);
  });

// ---------------------------------------------------------------- errors

define("message_too_large", async (bench) => {
  const queue = await bench.queue();
  const client = bench.connect(CONNECTION_STRING, { maxRetries: 0 });
  const sender = client.createSender(queue);
  const batch = await sender.createMessageBatch();
  assert.ok(batch.maxSizeInBytes > 200 * 1024 && batch.maxSizeInBytes <= 100 * 1024 * 1024, `${batch.maxSizeInBytes}`);
  assert.equal(batch.tryAddMessage({ body: Buffer.alloc(batch.maxSizeInBytes) }), false);
  const limit = batch.maxSizeInBytes;
  await serviceBusError(sender.sendMessages({ body: Buffer.alloc(limit + 1024) }), "MessageSizeExceeded");
  await sender.sendMessages({ body: "still fine" });
  const [message] = await receive(client.createReceiver(queue));
  assert.equal(message.body, "still fine");
});

define("missing_queue", async (bench) => {
  const client = bench.connect(CONNECTION_STRING, { maxRetries: 0 });
  const absent = `${bench.prefix}-absent`;
  await serviceBusError(client.createSender(absent).sendMessages({ body: "x" }), "MessagingEntityNotFound");
  await serviceBusError(client.createReceiver(absent).receiveMessages(1), "MessagingEntityNotFound");
  await serviceBusError(client.createReceiver(absent).peekMessages(1), "MessagingEntityNotFound");
  await serviceBusError(client.createReceiver(absent, "s").receiveMessages(1), "MessagingEntityNotFound");
  await serviceBusError(client.acceptSession(absent, "s"), "MessagingEntityNotFound");
});

const withWrongKey = () =>
  CONNECTION_STRING.replace(/SharedAccessKey=[^;]*/, `SharedAccessKey=${Buffer.alloc(32, 7).toString("base64")}`);

define("wrong_key", async (bench) => {
  const queue = await bench.queue();
  const client = bench.connect(withWrongKey(), { maxRetries: 0 });
  await serviceBusError(client.createSender(queue).sendMessages({ body: "x" }), "UnauthorizedAccess");
  await serviceBusError(client.createReceiver(queue).receiveMessages(1), "UnauthorizedAccess");
});

define("entity_disabled", async (bench) => {
  const queue = await bench.queue({ status: "SendDisabled" });
  const client = bench.connect(CONNECTION_STRING, { maxRetries: 0 });
  await serviceBusError(client.createSender(queue).sendMessages({ body: "x" }), "MessagingEntityDisabled");
  const properties = await bench.admin.getQueue(queue);
  await bench.admin.updateQueue({ ...properties, status: "ReceiveDisabled" });
  await client.createSender(queue).sendMessages({ body: "x" });
  await serviceBusError(
    client.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 2_000 }),
    "MessagingEntityDisabled",
  );
});

// ---------------------------------------------------------------- administration

define("admin_queue", async (bench) => {
  const { admin } = bench;
  const name = `${bench.prefix}-q`;
  assert.equal(await admin.queueExists(name), false);
  const created = await admin.createQueue(name, {
    lockDuration: "PT45S",
    maxDeliveryCount: 7,
    requiresSession: true,
    defaultMessageTimeToLive: "P2D",
    deadLetteringOnMessageExpiration: true,
    userMetadata: "notes & <more>",
  });
  assert.equal(created.name, name);
  assert.equal(await admin.queueExists(name), true);
  const got = await admin.getQueue(name);
  assert.equal(got.lockDuration, "PT45S");
  assert.equal(got.maxDeliveryCount, 7);
  assert.equal(got.requiresSession, true);
  assert.equal(got.defaultMessageTimeToLive, "P2D");
  assert.equal(got.deadLetteringOnMessageExpiration, true);
  assert.equal(got.userMetadata, "notes & <more>");
  assert.equal(got.status, "Active");
  assert.equal(got.requiresDuplicateDetection, false);
  assert.ok(got.maxSizeInMegabytes >= 1024);
  const updated = await admin.updateQueue({ ...got, maxDeliveryCount: 9, lockDuration: "PT1M" });
  assert.equal(updated.maxDeliveryCount, 9);
  assert.equal((await admin.getQueue(name)).lockDuration, "PT1M");
  assert.ok((await collect(admin.listQueues())).some((queue) => queue.name === name));
  assert.ok((await collect(admin.listQueuesRuntimeProperties())).some((queue) => queue.name === name));
  await admin.deleteQueue(name);
  assert.equal(await admin.queueExists(name), false);
});

define("admin_list_pages", async (bench) => {
  const names = [];
  for (let i = 0; i < 5; i++) names.push(await bench.queue({}, `q${i}`));
  const found = [];
  let pages = 0;
  for await (const page of bench.admin.listQueues().byPage({ maxPageSize: 2 })) {
    assert.ok(page.length <= 2, `a page of ${page.length}`);
    found.push(...page.map((queue) => queue.name));
    pages += 1;
  }
  assert.ok(pages >= 3, `${pages} pages`);
  for (const name of names) assert.equal(found.filter((other) => other === name).length, 1, name);
});

define("admin_topic", async (bench) => {
  const { admin } = bench;
  const name = `${bench.prefix}-t`;
  assert.equal(await admin.topicExists(name), false);
  await admin.createTopic(name, { defaultMessageTimeToLive: "PT3H", userMetadata: "t", requiresDuplicateDetection: true });
  const got = await admin.getTopic(name);
  assert.equal(got.defaultMessageTimeToLive, "PT3H");
  assert.equal(got.requiresDuplicateDetection, true);
  const updated = await admin.updateTopic({ ...got, userMetadata: "changed" });
  assert.equal(updated.userMetadata, "changed");
  assert.ok((await collect(admin.listTopics())).some((topic) => topic.name === name));
  await admin.createSubscription(name, "s");
  const runtime = await admin.getTopicRuntimeProperties(name);
  assert.equal(runtime.subscriptionCount, 1);
  assert.ok(runtime.createdAt instanceof Date && !Number.isNaN(runtime.createdAt.getTime()));
  assert.equal(await admin.topicExists(name), true);
  await admin.deleteTopic(name);
  assert.equal(await admin.topicExists(name), false);
});

define("admin_subscription", async (bench) => {
  const { admin } = bench;
  const topic = await bench.topic({});
  assert.equal(await admin.subscriptionExists(topic, "s"), false);
  await admin.createSubscription(topic, "s", { lockDuration: "PT30S", maxDeliveryCount: 4, requiresSession: true });
  const got = await admin.getSubscription(topic, "s");
  assert.equal(got.topicName, topic);
  assert.equal(got.subscriptionName, "s");
  assert.equal(got.lockDuration, "PT30S");
  assert.equal(got.maxDeliveryCount, 4);
  assert.equal(got.requiresSession, true);
  const updated = await admin.updateSubscription({ ...got, maxDeliveryCount: 5 });
  assert.equal(updated.maxDeliveryCount, 5);
  await admin.createSubscription(topic, "s2");
  const names = (await collect(admin.listSubscriptions(topic))).map((s) => s.subscriptionName).sort();
  assert.deepEqual(names, ["s", "s2"]);
  await admin.deleteSubscription(topic, "s");
  assert.equal(await admin.subscriptionExists(topic, "s"), false);
});

define("admin_rule", async (bench) => {
  const { admin } = bench;
  const topic = await bench.topic({ s: {} });
  await admin.createRule(topic, "s", "sql", { sqlExpression: "a = @x AND b < 'q'", sqlParameters: { "@x": 5 } }, { sqlExpression: "SET c = 1" });
  await admin.createRule(topic, "s", "corr", { subject: "sub", applicationProperties: { s: "t", n: 4, b: true } });
  const sql = await admin.getRule(topic, "s", "sql");
  assert.equal(sql.name, "sql");
  assert.equal(sql.filter.sqlExpression, "a = @x AND b < 'q'");
  assert.equal(sql.filter.sqlParameters["@x"], 5);
  assert.equal(sql.action.sqlExpression, "SET c = 1");
  const corr = await admin.getRule(topic, "s", "corr");
  assert.equal(corr.filter.subject, "sub");
  assert.deepEqual({ ...corr.filter.applicationProperties }, { s: "t", n: 4, b: true });
  const updated = await admin.updateRule(topic, "s", { ...sql, filter: { sqlExpression: "a = 6" } });
  assert.equal(updated.filter.sqlExpression, "a = 6");
  const names = (await collect(admin.listRules(topic, "s"))).map((rule) => rule.name).sort();
  assert.deepEqual(names, ["$Default", "corr", "sql"]);
  assert.equal(await admin.ruleExists(topic, "s", "sql"), true);
  await admin.deleteRule(topic, "s", "sql");
  assert.equal(await admin.ruleExists(topic, "s", "sql"), false);
  await restError(admin.createRule(topic, "s", "bad", { sqlExpression: "this is not = = sql" }), 400);
});

define("admin_runtime_counts", async (bench) => {
  const queue = await bench.queue();
  const sender = bench.client.createSender(queue);
  await sender.sendMessages([1, 2, 3, 4].map((body) => ({ body })));
  await sender.scheduleMessages({ body: "later" }, new Date(Date.now() + 3_600_000));
  const receiver = bench.client.createReceiver(queue);
  const [first] = await receive(receiver);
  await receiver.deadLetterMessage(first);
  const counts = await bench.admin.getQueueRuntimeProperties(queue);
  assert.equal(counts.activeMessageCount, 3);
  assert.equal(counts.deadLetterMessageCount, 1);
  assert.equal(counts.scheduledMessageCount, 1);
  assert.equal(counts.transferMessageCount, 0);
  assert.equal(counts.totalMessageCount, 5);
  assert.ok(counts.sizeInBytes > 0, "size");
  assert.ok(near(counts.createdAt, Date.now(), 60_000), `created at ${counts.createdAt}`);
  const topic = await bench.topic({ s1: {}, s2: { defaultRuleOptions: { name: "n", filter: { sqlExpression: "1=0" } } } });
  await bench.client.createSender(topic).sendMessages([{ body: 1 }, { body: 2 }]);
  assert.equal((await bench.admin.getSubscriptionRuntimeProperties(topic, "s1")).activeMessageCount, 2);
  const all = await collect(bench.admin.listSubscriptionsRuntimeProperties(topic));
  assert.deepEqual(all.map((s) => [s.subscriptionName, s.totalMessageCount]).sort(), [["s1", 2], ["s2", 0]]);
});

define("admin_not_found", async (bench) => {
  const { admin } = bench;
  const absent = `${bench.prefix}-absent`;
  const topic = await bench.topic({ s: {} });
  for (const call of [
    () => admin.getQueue(absent),
    () => admin.getTopic(absent),
    () => admin.getQueueRuntimeProperties(absent),
    () => admin.getSubscription(topic, absent),
    () => admin.getRule(topic, "s", absent),
    () => admin.deleteQueue(absent),
    () => admin.deleteSubscription(topic, absent),
  ])
    // Asked for what is not there, the service answers 200 with an empty feed; only a deletion is answered 404.
    assert.equal((await restError(call(), 200, 404)).code, "MessageEntityNotFoundError");
});

define("admin_already_exists", async (bench) => {
  const queue = await bench.queue();
  const topic = await bench.topic({ s: {} });
  for (const call of [
    () => bench.admin.createQueue(queue),
    () => bench.admin.createTopic(topic),
    () => bench.admin.createSubscription(topic, "s"),
    () => bench.admin.createRule(topic, "s", "$Default", { sqlExpression: "1=1" }),
  ])
    assert.equal((await restError(call(), 409)).code, "MessageEntityAlreadyExistsError");
});

define("admin_namespace", async (bench) => {
  const properties = await bench.admin.getNamespaceProperties();
  assert.equal(properties.name, "contoso");
  assert.ok(["Basic", "Standard", "Premium"].includes(properties.messagingSku), properties.messagingSku);
  assert.ok(!Number.isNaN(properties.createdAt.getTime()));
});

define("admin_wrong_key", async (bench) => {
  await restError(administration(withWrongKey()).getQueue(`${bench.prefix}-q`), 401);
});

// ---------------------------------------------------------------- the runner

async function run(name, body) {
  let bench;
  const timer = new AbortController();
  const limit = sleep(CASE_LIMIT_MS, undefined, { signal: timer.signal }).then(() => {
    throw new Error(`no end within ${CASE_LIMIT_MS / 1000} s`);
  });
  limit.catch(() => undefined);
  const started = Date.now();
  let outcome;
  try {
    bench = new Bench(name);
    await Promise.race([body(bench), limit]);
    outcome = { case: name, ok: true, detail: `${Date.now() - started} ms` };
  } catch (error) {
    const where = error?.stack?.match(/conformance\.mjs:(\d+)(?!.*\n.*conformance\.mjs:)/)?.[1];
    const at = where ? ` (line ${where})` : "";
    outcome = { case: name, ok: false, detail: `${error?.name} ${error?.code ?? ""}: ${error?.message}${at}` };
  } finally {
    timer.abort();
  }
  process.stdout.write(`${JSON.stringify(outcome)}\n`);
  await Promise.race([bench?.close(), sleep(3_000)]);
  return outcome.ok;
}

process.on("unhandledRejection", (reason) => process.stderr.write(`unhandled rejection: ${reason?.stack ?? reason}\n`));
process.on("uncaughtException", (error) => process.stderr.write(`uncaught: ${error?.stack ?? error}\n`));

const chosen = process.argv.length > 2 ? process.argv.slice(2) : [...cases.keys()];
const unknown = chosen.filter((name) => !cases.has(name));
if (unknown.length || !CONNECTION_STRING) {
  process.stderr.write(unknown.length ? `unknown cases: ${unknown.join(", ")}\n` : "LOCALBUS is not set\n");
  process.exit(2);
}
const waiting = [...chosen];
const verdicts = [];
const lane = async () => {
  for (let name = waiting.shift(); name; name = waiting.shift()) verdicts.push(await run(name, cases.get(name)));
};
await Promise.all(Array.from({ length: Number(process.env.CONCURRENCY ?? 4) }, lane));
process.exit(verdicts.every(Boolean) ? 0 : 1);
