// Runs Microsoft's Service Bus SDK for Go, unmodified, against localbus: one JSON line per case, exit code 0 if
// and only if every case is ok. Arguments name the cases to run; none means all.
//
//	LOCALBUS     connection string (UseDevelopmentEmulator=true)
//	LOCALBUS_CA  the CA file of localbus, for the administration client
//	LOCALBUS_INTEROP  prefix of two queues that the caller made: what waits in "-in" is sent on to "-out" (optional)
//	CONCURRENCY  cases at a time (4)
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const caseLimit = 30 * time.Second

type conformanceCase struct {
	name string
	run  func(*bench)
}

var cases = []conformanceCase{
	{"send_receive_complete", sendReceiveComplete},
	{"system_properties", systemProperties},
	{"batch_send", batchSend},
	{"drain_500", drain500},
	{"abandon_with_properties", abandonWithProperties},
	{"max_delivery_count", maxDeliveryCount},
	{"defer_receive_by_sequence_number", deferAndReceive},
	{"dead_letter", deadLetter},
	{"peek", peek},
	{"schedule_and_cancel", scheduleAndCancel},
	{"scheduled_by_property", scheduledByProperty},
	{"renew_lock", renewLock},
	{"lock_expiry", lockExpiry},
	{"receive_and_delete", receiveAndDelete},
	{"ttl_dead_letter", ttlDeadLetter},
	{"ttl_of_entity_discards", ttlOfEntityDiscards},
	{"duplicate_detection", duplicateDetection},
	{"auto_forward", autoForward},
	{"session_named", sessionNamed},
	{"session_next", sessionNext},
	{"session_order", sessionOrder},
	{"session_state", sessionState},
	{"session_renew_lock", sessionRenewLock},
	{"session_lock_lost", sessionLockLost},
	{"session_next_timeout", sessionNextTimeout},
	{"session_cannot_be_locked", sessionCannotBeLocked},
	{"session_rules_of_the_queue", sessionRulesOfTheQueue},
	{"session_defer_and_peek", sessionDeferAndPeek},
	{"session_list", sessionList},
	{"topic_default_rule", topicDefaultRule},
	{"topic_sql_filter", topicSQLFilter},
	{"topic_correlation_filter", topicCorrelationFilter},
	{"topic_sql_action", topicSQLAction},
	{"topic_subscription_dead_letter", topicSubscriptionDeadLetter},
	{"topic_sessions_and_schedule", topicSessionsAndSchedule},
	{"property_types", propertyTypes},
	{"body_types", bodyTypes},
	{"large_message", largeMessage},
	{"message_too_large", messageTooLarge},
	{"missing_queue", missingQueue},
	{"wrong_key", wrongKey},
	{"entity_disabled", entityDisabled},
	{"admin_queue", adminQueue},
	{"admin_list_pages", adminListPages},
	{"admin_topic", adminTopic},
	{"admin_subscription", adminSubscription},
	{"admin_rule", adminRule},
	{"admin_runtime_counts", adminRuntimeCounts},
	{"admin_not_found", adminNotFound},
	{"admin_already_exists", adminAlreadyExists},
	{"admin_namespace", adminNamespace},
	{"admin_wrong_key", adminWrongKey},
}

type outcome struct {
	Case   string `json:"case"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

func run(c conformanceCase) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), caseLimit)
	defer cancel()
	started := time.Now()
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			switch problem := recover().(type) {
			case nil:
				done <- outcome{c.name, true, fmt.Sprintf("%d ms", time.Since(started).Milliseconds())}
			case failure:
				done <- outcome{c.name, false, string(problem)}
			default:
				done <- outcome{c.name, false, fmt.Sprintf("panic: %v\n%s", problem, debug.Stack())}
			}
		}()
		b := newBench(ctx, c.name)
		defer b.close()
		c.run(b)
	}()
	select {
	case result := <-done:
		return result
	case <-time.After(caseLimit + 3*time.Second):
		return outcome{c.name, false, fmt.Sprintf("no end within %v", caseLimit)}
	}
}

func main() {
	if connectionString() == "" {
		fmt.Fprintln(os.Stderr, "LOCALBUS is not set")
		os.Exit(2)
	}
	if os.Getenv("LOCALBUS_INTEROP") != "" {
		cases = append(cases, conformanceCase{"interop_with_python", interopWithPython})
	}
	chosen := cases
	if len(os.Args) > 1 {
		chosen = nil
		for _, name := range os.Args[1:] {
			found := false
			for _, c := range cases {
				if c.name == name {
					chosen, found = append(chosen, c), true
				}
			}
			if !found {
				fmt.Fprintln(os.Stderr, "unknown case:", name)
				os.Exit(2)
			}
		}
	}
	lanes, err := strconv.Atoi(os.Getenv("CONCURRENCY"))
	if err != nil {
		lanes = 4
	}
	waiting := make(chan conformanceCase, len(chosen))
	for _, c := range chosen {
		waiting <- c
	}
	close(waiting)
	var failed atomic.Bool
	var printing sync.Mutex
	var group sync.WaitGroup
	for range lanes {
		group.Add(1)
		go func() {
			defer group.Done()
			for c := range waiting {
				result := run(c)
				line, _ := json.Marshal(result)
				printing.Lock()
				fmt.Println(string(line))
				printing.Unlock()
				if !result.OK {
					failed.Store(true)
				}
			}
		}()
	}
	group.Wait()
	if failed.Load() {
		os.Exit(1)
	}
}
