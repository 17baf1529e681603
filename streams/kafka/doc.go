// Package kafka runs message handlers on Kafka topics. It polls records, schedules and
// calls the handlers, publishes the messages that they return, and commits offsets. It
// and the packages below it are the only ones that import the Kafka client: client has
// the settings, metrics the counts, admin the state of topics and groups, and
// deadletter the messages that could not be handled.
//
// # Delivery
//
// Delivery is at least once. Every record that is read ends in one of three ways: the
// brokers acknowledge its outputs, the brokers acknowledge the dead letter made of it,
// or Run returns an error and the record is delivered again. An offset is committed
// only when every record below it has ended in one of the first two ways. A crash at any
// point repeats work and loses none. Handlers must therefore be idempotent.
//
// # Order
//
// A Pool handles the messages of one key in order, and different keys concurrently. A
// BatchGroup stores each partition in order. A message that waits in a delay lane is
// delivered after messages of its key that were published later.
//
// # Errors
//
// Package retry defines the classes of errors:
//
//   - transient: the call is repeated in place, then the message waits in the delay
//     lanes, for at most MaxAttempts deliveries
//   - unavailable: the message waits in lanes of at most five minutes; this does not
//     count as an attempt
//   - wait: the message is delivered again when it is due
//   - permanent: the message becomes a dead letter at once, as do records that cannot
//     be decoded and messages that make the handler panic
//
// A record in a delay lane and a dead letter keep the key and the value of the original
// record, byte for byte. These headers are added:
//
//	millrace-topic, -partition, -offset, -timestamp   where and when it was first read
//	millrace-role                                     the role that failed
//	millrace-attempts, -waits, -unavailable           deliveries that ended in each way
//	millrace-waits-for                                waits by cause: CAUSE=N ...
//	millrace-after                                    time from the record in a lane to the next delivery
//	millrace-due                                      earliest Kafka time of that (RFC 3339), by the Delayer
//	millrace-class, -error                            the last failure
//	millrace-history                                  JSON: [{"attempt","class","error","by","first","last","times"}]
//
// # Foreign topics
//
// The ingester also reads the topics in Config.Foreign, which other systems own. Their
// records reach the handler as bytes, without a decoded body. They are retried, delayed
// and become dead letters like all others, under the topic foreign:NAME
// (schemas.Foreign). This package never writes to, creates or trims a foreign topic. A
// message to a foreign topic, returned by a handler or published by a Producer, is
// written to again.ingester, and the ingester handles it like a record of that topic.
package kafka
