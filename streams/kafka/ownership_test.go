package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Each key has one owner, that of its partition. It moves to another process when its owner stops.
func TestOwnership(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 6})
		var keys []string
		partitionOf := map[string]int32{}
		for i := range 60 {
			c := &pb.Checkpoint{Id: schemas.ID(fmt.Sprint(i)), Sweep: "s", Split: fmt.Sprint(i), Round: "r"}
			keys = append(keys, schemas.Key(c.GetSweep(), c.GetSplit()))
			b.Send(schemas.Message{Topic: schemas.Checkpoints, Body: c})
		}
		for _, r := range b.Read(schemas.Checkpoints) {
			partitionOf[string(r.Key)] = r.Partition
		}
		type member struct {
			*kafka.Ownership
			stop    func()
			changes int
		}
		start := func() *member {
			m := &member{}
			var err error
			m.Ownership, err = kafka.NewOwnership(b.Config(), schemas.RoleSweeper, schemas.Checkpoints, func() { m.changes++ })
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- m.Run(ctx) }()
			m.stop = func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			return m
		}
		owners := func(when string, want bool, members ...*member) (counts []int) {
			t.Helper()
			counts = make([]int, len(members))
			of := map[int32]int{}
			for _, key := range keys {
				n := 0
				for i, m := range members {
					if m.Owns(key) {
						n++
						counts[i]++
						if was, ok := of[partitionOf[key]]; ok && was != i {
							t.Errorf("%s: partition %d has two owners", when, partitionOf[key])
						}
						of[partitionOf[key]] = i
					}
				}
				if (n == 1) != want || n > 1 {
					t.Errorf("%s: %d owners of %s", when, n, key)
				}
			}
			return counts
		}
		first := start()
		owners("before it is a member", false, first)
		time.Sleep(30 * time.Second)
		owners("alone", true, first)
		second := start()
		time.Sleep(time.Minute)
		if got := owners("two", true, first, second); got[0] == 0 || got[1] == 0 {
			t.Errorf("they own %v of 60 keys", got)
		}
		if second.changes == 0 {
			t.Error("no change was reported")
		}
		first.stop()
		time.Sleep(time.Minute)
		owners("after a stop", true, first, second)
		if got := owners("after a stop", true, first, second); got[0] != 0 {
			t.Errorf("the stopped one owns %d keys", got[0])
		}
		second.stop()
		if c := b.Committed(schemas.RoleSweeper, schemas.Checkpoints); len(c) > 0 {
			t.Errorf("committed %v", c)
		}
	})
}
