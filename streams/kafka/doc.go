// Package kafka runs handlers over Kafka: it polls, hands out, publishes what the
// handlers return, and commits. It is the only package that knows the Kafka client.
//
// # Delivery
//
// Every record that is read ends in one of three ways: its outputs are acknowledged
// by the brokers, it is a dead letter that is acknowledged, or Run returns an error
// and the record is delivered again. Offsets are committed only after that, and never
// past a record that is unfinished. A crash at any point repeats work and loses none,
// so handlers must bear being called twice with one message.
//
// # Order
//
// A Pool handles each key in order, and different keys side by side. A BatchGroup stores each partition in order. A message
// that went through the delay lanes comes back later than those that followed it.
//
// # Errors
//
// Package retry classes them. Transient ones are tried again in place, then through the
// delay lanes, up to MaxAttempts deliveries; unavailable ones wait in lanes of at most
// five minutes and spend no attempt; wait ones come back when they are due; permanent
// ones become dead letters at once, and so do records that cannot be decoded and
// handlers that panic. A record that waits, and a dead letter, is the original record,
// byte for byte, with headers added:
//
//	millrace-topic, -partition, -offset, -timestamp   where and when it was first read
//	millrace-role                                     who failed
//	millrace-attempts, -waits, -unavailable           deliveries that ended in each way
//	millrace-waits-for                                of -waits, those with a cause: CAUSE=N ...
//	millrace-due                                      when it may come back (RFC 3339)
//	millrace-class, -error                            the last failure
//	millrace-history                                  JSON: [{"attempt","class","error","by","first","last","times"}]
//
// # Topics of others
//
// The ingester reads those that Config.Foreign names, under their own names. Their records come to the handler as
// bytes, and wait, come back and become dead letters as others do, under the topic foreign:NAME (schemas.Foreign).
// Nothing is written to them, made or trimmed. A message in such a name that a handler returns, or a Producer publishes, goes to
// again.ingester: the ingester gets it as if it had come from there.
package kafka
