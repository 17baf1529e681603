// Package kafka runs handlers over Kafka consumer groups.
package kafka
