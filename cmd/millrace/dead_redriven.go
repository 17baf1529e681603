package main

import (
	"context"
	"crypto/sha256"
	"strconv"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
)

// A deadSum is a hash of what names a letter or its message: there may be millions.
type deadSum [16]byte

func sumOf(name string) deadSum {
	full := sha256.Sum256([]byte(name))
	return deadSum(full[:len(deadSum{})])
}

// messageOf names the message of a letter: each time that a role cannot handle it, it is another letter.
func messageOf(l *kafka.DeadLetter) deadSum {
	key := ""
	if l.Partition < 0 { // it never was on its topic
		key = string(l.Key)
	}
	return sumOf(schemas.Key(string(l.Role), string(l.Topic), strconv.Itoa(int(l.Partition)), strconv.FormatInt(l.Offset, 10), key))
}

// redriven are letters that are about to be redriven.
type redrivenLetters struct {
	ids      map[deadSum]bool
	messages map[deadSum]bool
}

// letters returns the letters that q chooses, if the order waits for them.
func (o *deadDecision) letters(ctx context.Context, d *kafka.DeadLetters, q kafka.DeadQuery) (redrivenLetters, error) {
	r := redrivenLetters{map[deadSum]bool{}, map[deadSum]bool{}}
	if !o.wait {
		return r, nil
	}
	err := d.Each(ctx, q, func(l *kafka.DeadLetter) error {
		r.ids[sumOf(l.ID)], r.messages[messageOf(l)] = true, true
		return nil
	})
	return r, err
}

// again counts the messages that are dead letters once more.
func (r redrivenLetters) countDeadAgain(ctx context.Context, d *kafka.DeadLetters) (int, error) {
	dead := map[deadSum]bool{}
	err := d.Each(ctx, kafka.DeadQuery{}, func(l *kafka.DeadLetter) error {
		if m := messageOf(l); r.messages[m] && !r.ids[sumOf(l.ID)] {
			dead[m] = true
		}
		return nil
	})
	return len(dead), err
}
