// Command watermill-kafka consumes a topic with watermill's router over watermill-kafka,
// and prints how long it took, as one line of JSON: {"records","seconds"}. The clock runs
// from the first call of the handler to the end of the last, so that neither start nor
// joining the group counts. It is a peer of "millrace bench runtime", which runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "watermill-kafka:", err)
		os.Exit(1)
	}
}

type result struct {
	Records int64   `json:"records"`
	Seconds float64 `json:"seconds"`
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("watermill-kafka", flag.ContinueOnError)
	broker := flags.String("broker", "", "`HOST:PORT` of a broker")
	topic := flags.String("topic", "", "`TOPIC` to consume, from its start")
	group := flags.String("group", "", "consumer `GROUP`")
	records := flags.Int64("records", 0, "stop after `N` records")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *broker == "" || *topic == "" || *group == "" || *records <= 0 {
		return errors.New("wants --broker, --topic, --group and --records")
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	sub, err := subscriber(*broker, *group)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		n           atomic.Int64
		first, last time.Time
	)
	router.AddNoPublisherHandler("bench", *topic, sub, func(*message.Message) error {
		switch n.Add(1) {
		case 1:
			first = time.Now()
		case *records:
			last = time.Now()
			cancel()
		}
		return nil
	})
	if err := router.Run(ctx); err != nil {
		return err
	}
	if n.Load() < *records {
		return fmt.Errorf("stopped after %d of %d records", n.Load(), *records)
	}
	return json.NewEncoder(out).Encode(result{Records: *records, Seconds: last.Sub(first).Seconds()})
}

// subscriber has watermill's and sarama's own settings, but for the protocol's version, as
// new as sarama knows, and the start of the topic.
func subscriber(broker, group string) (*kafka.Subscriber, error) {
	cfg := kafka.DefaultSaramaSubscriberConfig()
	cfg.Version = sarama.MaxVersion
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	return kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: []string{broker}, ConsumerGroup: group,
		Unmarshaler: kafka.DefaultMarshaler{}, OverwriteSaramaConfig: cfg,
	}, watermill.NopLogger{})
}
