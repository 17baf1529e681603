package admin_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// sinkReads are the topics of the Watermarks in these tests.
func sinkReads() map[schemas.Role][]schemas.Topic {
	return map[schemas.Role][]schemas.Topic{schemas.RoleSink: {schemas.Changes, schemas.FixityResults}}
}

// Progress is reported with the log that it is of. It does not count removed records. A commit beyond the end of
// a log with records is an error.
func TestWatermark(t *testing.T) {
	t.Parallel()
	commit := func(b *kafkatest.Broker, at int64) {
		b.ReplaceMembers(schemas.RoleSink, schemas.Changes, map[int32]int64{0: at})
	}
	send := func(b *kafkatest.Broker) { b.Send(parttest.Change("a"), parttest.Change("b"), parttest.Change("c")) }
	for name, tt := range map[string]struct {
		make func(b *kafkatest.Broker)
		want []schemas.Progress // in the current incarnation
		err  string
	}{
		"nothing at all": {make: func(*kafkatest.Broker) {}, want: []schemas.Progress{{Topic: schemas.Changes}}},
		"an empty log and a commit": {make: func(b *kafkatest.Broker) { commit(b, 0) },
			want: []schemas.Progress{{Topic: schemas.Changes}}},
		"all is committed": {make: func(b *kafkatest.Broker) { send(b); commit(b, 3) },
			want: []schemas.Progress{{Topic: schemas.Changes, Next: 3}}},
		"nothing is committed": {make: send, err: context.DeadlineExceeded.Error()},
		"not all is committed": {make: func(b *kafkatest.Broker) { send(b); commit(b, 2) },
			err: context.DeadlineExceeded.Error()},
		"what is committed was trimmed": {make: func(b *kafkatest.Broker) {
			send(b)
			commit(b, 3)
			b.Trim(schemas.Changes, 0, 3)
		},
			want: []schemas.Progress{{Topic: schemas.Changes, Start: 3, Next: 3}}},
		"made anew, with records": {make: func(b *kafkatest.Broker) {
			b.Recreate(schemas.Changes, 1)
			commit(b, 50)
			send(b)
		}, err: "whose log ends at 3"},
		"made anew, and empty": {make: func(b *kafkatest.Broker) { b.Recreate(schemas.Changes, 1); commit(b, 50) },
			want: []schemas.Progress{{Topic: schemas.Changes}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				tt.make(b)
				adm, err := admin.New(b.Config())
				must(t, err)
				defer adm.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				got, err := adm.NewWatermark(schemas.Changes, sinkReads()).Wait(ctx)
				if tt.err != "" {
					if err == nil || !strings.Contains(err.Error(), tt.err) {
						t.Fatalf("Wait = %v, %v, want error %q", got, err, tt.err)
					}
					return
				}
				must(t, err)
				e, err := adm.Extent(t.Context(), schemas.Changes)
				must(t, err)
				for i := range tt.want {
					tt.want[i].Incarnation = e.Incarnation
				}
				progress := slices.DeleteFunc(got[schemas.RoleSink],
					func(p schemas.Progress) bool { return p.Topic != schemas.Changes })
				if !slices.Equal(progress, tt.want) {
					t.Errorf("got %v, want %v", progress, tt.want)
				}
			})
		})
	}
}
