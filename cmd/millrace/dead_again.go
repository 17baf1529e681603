package main

import (
	"context"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
)

// A deadMessage is the message of dead letters: each time that a role cannot handle it, it is another letter.
type deadMessage struct {
	role      schemas.Role
	topic     schemas.Topic
	partition int32
	offset    int64
	key       string // if it never was on its topic
}

func messageOf(l *kafka.DeadLetter) deadMessage {
	m := deadMessage{role: l.Role, topic: l.Topic, partition: l.Partition, offset: l.Offset}
	if l.Partition < 0 {
		m.key = string(l.Key)
	}
	return m
}

// redriven are letters that are about to be redriven.
type redriven struct {
	ids      map[string]bool
	messages map[deadMessage]bool
}

// letters returns the letters that q chooses, if the order waits for them.
func (o *deadOrder) letters(ctx context.Context, d *kafka.DeadLetters, q kafka.DeadQuery) (redriven, error) {
	r := redriven{map[string]bool{}, map[deadMessage]bool{}}
	if !o.wait {
		return r, nil
	}
	err := d.Each(ctx, q, func(l *kafka.DeadLetter) error {
		r.ids[l.ID], r.messages[messageOf(l)] = true, true
		return nil
	})
	return r, err
}

// again counts the messages that are dead letters once more.
func (r redriven) again(ctx context.Context, d *kafka.DeadLetters) (int, error) {
	dead := map[deadMessage]bool{}
	err := d.Each(ctx, kafka.DeadQuery{}, func(l *kafka.DeadLetter) error {
		if m := messageOf(l); r.messages[m] && !r.ids[l.ID] {
			dead[m] = true
		}
		return nil
	})
	return len(dead), err
}
