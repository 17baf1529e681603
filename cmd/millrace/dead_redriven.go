package main

import (
	"context"
	"crypto/sha256"
	"strconv"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/deadletter"
)

// A deadSum is a hash of the name of a dead letter or message; there may be millions.
type deadSum [16]byte

func sumOf(name string) deadSum {
	full := sha256.Sum256([]byte(name))
	return deadSum(full[:len(deadSum{})])
}

// messageOf returns the hash of the message of a dead letter. Each failure of a message makes a new
// dead letter of the same message.
func messageOf(l *deadletter.Letter) deadSum {
	key := ""
	if l.Partition < 0 { // it was never on its topic
		key = string(l.Key)
	}
	partition, offset := strconv.Itoa(int(l.Partition)), strconv.FormatInt(l.Offset, 10)
	return sumOf(schemas.Key(string(l.Role), string(l.Topic), partition, offset, key))
}

// redrivenLetters are the dead letters that will be redriven, and their messages.
type redrivenLetters struct {
	ids      map[deadSum]bool
	messages map[deadSum]bool
}

// letters returns the dead letters that q selects, if the command waits for them.
func (o *deadDecision) letters(
	ctx context.Context, d *deadletter.Letters, q deadletter.Query,
) (redrivenLetters, error) {
	r := redrivenLetters{map[deadSum]bool{}, map[deadSum]bool{}}
	if !o.wait {
		return r, nil
	}
	err := d.Each(ctx, q, func(l *deadletter.Letter) error {
		r.ids[sumOf(l.ID)], r.messages[messageOf(l)] = true, true
		return nil
	})
	return r, err
}

// countDeadAgain returns the number of messages that are dead letters again.
func (r redrivenLetters) countDeadAgain(ctx context.Context, d *deadletter.Letters) (int, error) {
	dead := map[deadSum]bool{}
	err := d.Each(ctx, deadletter.Query{}, func(l *deadletter.Letter) error {
		if m := messageOf(l); r.messages[m] && !r.ids[sumOf(l.ID)] {
			dead[m] = true
		}
		return nil
	})
	return len(dead), err
}
