package integration

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/held/heldtest"
	planning "github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/record"
)

// spaceLoop connects planner, copier and deleter with two real stores without a broker. It records the Changes of
// spaces as the tables do.
type spaceLoop struct {
	t       *testing.T
	stores  map[string]storage.Store
	planner *planning.Planner
	copier  *duplicate.Executor
	deleter *deletion.Deleter

	mu     sync.Mutex
	spaces map[schemas.Copy]*pb.Record // guarded by mu
	hour   int                         // of the last Change of the source
}

const spaceOfLoop = "photos"

func newSpaceLoop(t *testing.T, source, destination storage.Store) *spaceLoop {
	l := &spaceLoop{t: t, stores: map[string]storage.Store{"1": source, "2": destination},
		spaces: map[schemas.Copy]*pb.Record{}}
	for _, s := range l.stores {
		l.must(s.WriteMarker(t.Context()))
	}
	var err error
	l.planner, err = planning.New(planning.Config{}, l)
	l.must(err)
	l.copier, err = duplicate.New(duplicate.Config{}, l, l, l)
	l.must(err)
	topic := braketest.New(brake.Deletes)
	c := deletion.Config{Brake: topic.Process(), Lists: noDecisions{heldtest.New()}, Publisher: topic}
	l.deleter, err = deletion.New(c, l, l, l)
	l.must(err)
	return l
}

// noDecisions has lists about which no operator decides.
type noDecisions struct{ *heldtest.Lists }

func (noDecisions) Waiting(context.Context, held.List, string) ([]deletion.Listed, error) {
	return nil, nil
}

func (noDecisions) Decide(context.Context, held.List, string) (string, error) {
	return "no decision", nil
}

func (noDecisions) Ordered(context.Context, held.List, string) error { return nil }

func (l *spaceLoop) must(err error) {
	l.t.Helper()
	must(l.t, err)
}

func (l *spaceLoop) Store(_, id string) (storage.Store, bool) { s, ok := l.stores[id]; return s, ok }

func (l *spaceLoop) Rules(string, string) (policy.Rules, bool) {
	return policy.Rules{Pairs: []policy.Pair{{Source: "1", Destination: "2"}}, Deletes: policy.Propagate}, true
}

func (l *spaceLoop) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*pb.CopyRecord
	for _, c := range copies {
		none := &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
		r := &pb.CopyRecord{Manifest: none, Audit: none}
		if s := l.spaces[c]; s != nil && c.Item == "" {
			r.Audit = s
		}
		all = append(all, r)
	}
	return all, nil
}

func (l *spaceLoop) record(c *pb.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := schemas.CopyOf(c)
	if old := l.spaces[at]; at.Item != "" || old.GetTime().AsTime().After(c.GetTime().AsTime()) {
		return
	}
	state := pb.RecordState_RECORD_STATE_LIVE
	if c.GetOp() == pb.Op_OP_DELETE_SPACE {
		state = pb.RecordState_RECORD_STATE_TOMBSTONE
	}
	l.spaces[at] = &pb.Record{State: state, Time: c.GetTime(), Origin: c.GetOrigin()}
}

// reported records a client's Change of the source, and returns the planner's command for it.
func (l *spaceLoop) reported(c *pb.Change) *pb.DuplicationCommand {
	l.t.Helper()
	c.Origin = pb.Origin_ORIGIN_CLIENT
	l.record(record.Seal(c))
	out, err := l.planner.Handle(l.t.Context(), &schemas.Delivery{Topic: schemas.Changes, Body: c,
		Timestamp: c.GetTime().AsTime()})
	l.must(err)
	if len(out) != 1 {
		l.t.Fatalf("%d commands for %v, want 1", len(out), c.GetOp())
	}
	return out[0].Body.(*pb.DuplicationCommand)
}

func (l *spaceLoop) changed(op pb.Op) *pb.DuplicationCommand {
	l.t.Helper()
	l.hour++
	at := time.Date(2026, 9, 1, l.hour, 0, 0, 0, time.UTC)
	return l.reported(&pb.Change{Op: op, Account: "acme", Store: "1", Space: spaceOfLoop, Time: timestamppb.New(at)})
}

// run executes commands and all that follow from them, each twice, and returns the results by command. lost drops the
// Changes of the first executions.
func (l *spaceLoop) run(lost bool, commands ...schemas.Body) (rows []string, err error) {
	l.t.Helper()
	for len(commands) > 0 {
		c := commands[0]
		commands = commands[1:]
		for n := range 2 {
			d := &schemas.Delivery{Body: c, Attempt: n + 1, Timestamp: time.Date(2026, 9, 2, 0, 0, 0, 0, time.UTC)}
			handle := l.copier.Handle
			if _, ok := c.(*pb.DeletionCommand); ok {
				handle = l.deleter.Handle
			}
			out, err := handle(l.t.Context(), d)
			if err != nil {
				return rows, err
			}
			for _, m := range out {
				switch b := m.Body.(type) {
				case *pb.Change:
					if !lost || n > 0 {
						l.record(b)
					}
				case *pb.DeletionCommand, *pb.DuplicationCommand:
					if n == 0 {
						commands = append(commands, b)
					}
				case *pb.DuplicationResult:
					rows = append(rows, b.GetDecision()+" "+b.GetResult())
				}
			}
		}
	}
	return rows, nil
}

// ends runs commands and checks the results.
func (l *spaceLoop) ends(lost bool, want string, commands ...schemas.Body) {
	l.t.Helper()
	rows, err := l.run(lost, commands...)
	l.must(err)
	if got := strings.Join(rows, ", "); got != want {
		l.t.Errorf("got %s; want %s", got, want)
	}
}

// has checks the destination's space; nil: it is absent.
func (l *spaceLoop) has(want *storage.Space) {
	l.t.Helper()
	got, err := l.stores["2"].StatSpace(l.t.Context(), spaceOfLoop)
	switch {
	case want == nil && !errors.Is(err, storage.ErrNoSpace):
		l.t.Errorf("got %+v, %v, want no space", got, err)
	case want != nil && (err != nil || !maps.Equal(got.Properties, want.Properties) || !maps.Equal(got.ACL, want.ACL)):
		l.t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// spaceStores returns functions that open stores: a directory, and S3 with a bucket for all spaces and for each.
func spaceStores(t *testing.T) map[string]func(*testing.T) storage.Store {
	all := map[string]func(*testing.T) storage.Store{"file": func(t *testing.T) storage.Store {
		s, err := file.Open(file.Config{ID: "acme/1", Root: t.TempDir()})
		must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}}
	for _, kind := range harness.S3Kinds() {
		server := harness.S3(t, harness.S3Options{Kind: kind})
		for _, perSpace := range []bool{false, true} {
			r := newRealS3(t, server, perSpace, false)
			all[fmt.Sprintf("%s, a bucket for each space: %t", kind, perSpace)] = func(t *testing.T) storage.Store {
				return openS3(t, r.config(t)).Store
			}
		}
	}
	return all
}

// TestSpaces runs the rows about spaces over real file and S3 stores: each command and delete twice, commands in both
// orders, and with the messages of the first execution lost.
func TestSpaces(t *testing.T) {
	stores := spaceStores(t)
	for name, open := range stores {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("to %s, lost %t", name, lost), func(t *testing.T) {
				t.Parallel()
				l := newSpaceLoop(t, stores["file"](t), open(t))
				l.lifeOfSpace(lost)
			})
			if name == "file" {
				continue
			}
			t.Run(fmt.Sprintf("from %s, lost %t", name, lost), func(t *testing.T) {
				t.Parallel()
				l := newSpaceLoop(t, open(t), stores["file"](t))
				l.lifeOfSpace(lost)
			})
		}
	}
}

func (l *spaceLoop) lifeOfSpace(lost bool) {
	ctx, from, to := l.t.Context(), l.stores["1"], l.stores["2"]
	about := storage.Space{Name: spaceOfLoop, Properties: map[string]string{"of": "Ann Ö"},
		ACL: map[string]string{"all": "r"}}
	create := func() *pb.DuplicationCommand {
		l.must(from.CreateSpace(ctx, about))
		return l.changed(pb.Op_OP_CREATE_SPACE)
	}
	l.ends(lost, "S1 created, S1b in-sync", create())
	l.has(&about)

	about.Properties, about.ACL = map[string]string{"of": "Bob"}, nil
	l.must(from.SetSpace(ctx, about))
	l.ends(lost, "S1b properties-set, S1b in-sync", l.changed(pb.Op_OP_SET_SPACE_PROPERTIES))
	l.has(&about)

	_, err := to.Put(ctx, spaceOfLoop, "a", strings.NewReader("x"), storage.PutOptions{Size: 1})
	l.must(err)
	l.must(from.DeleteSpace(ctx, spaceOfLoop))
	gone := l.changed(pb.Op_OP_DELETE_SPACE)
	if _, err := l.run(lost, gone); retry.ClassOf(err) != retry.ClassWait {
		l.t.Errorf("with an item at the destination: got %v, want a wait", err)
	}
	l.has(&about)
	_, err = to.Delete(ctx, spaceOfLoop, "a", storage.DeleteOptions{KeepDeleted: to.Capabilities().KeepsReplaced})
	l.must(err)
	l.ends(lost, "S2 deletion-ordered, S2 deletion-ordered, S2 deleted, S4 gone", gone)
	l.has(nil)
	if r := l.spaces[schemas.Copy{Account: "acme", Store: "2", Space: spaceOfLoop}]; r.GetState() !=
		pb.RecordState_RECORD_STATE_TOMBSTONE {
		l.t.Errorf("on record of the deleted space: %v", r)
	}

	l.ends(lost, "S4 gone, S4 gone", gone)
	again := create()
	l.ends(lost, "S1 created, S1b in-sync, S1b in-sync, S1b in-sync", gone, again) // the older command comes first
	l.has(&about)
	l.ends(lost, "S1b in-sync, S1b in-sync, S1b in-sync, S1b in-sync", again, gone)
	l.must(from.DeleteSpace(ctx, spaceOfLoop))
	l.ends(lost, "S2 deletion-ordered, S2 deletion-ordered, S2 deletion-ordered, S2 deletion-ordered, "+
		"S2 deleted, S4 gone, S4 gone, S4 gone", l.changed(pb.Op_OP_DELETE_SPACE), again)
	l.has(nil)
}

// TestSpaceByTwoExecutors sets the properties of a space by many executions at once, while the source changes: the
// destination ends with those of the source. A server may answer one of several requests for one bucket with an
// internal error, as versitygw does: that execution is tried again.
func TestSpaceByTwoExecutors(t *testing.T) {
	stores := spaceStores(t)
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newSpaceLoop(t, stores["file"](t), open(t))
			about := storage.Space{Name: spaceOfLoop}
			l.must(l.stores["1"].CreateSpace(t.Context(), about))
			commands := []*pb.DuplicationCommand{l.changed(pb.Op_OP_CREATE_SPACE)}
			var wg sync.WaitGroup
			for n := range 8 {
				about.Properties = map[string]string{"n": fmt.Sprint(n)}
				l.must(l.stores["1"].SetSpace(t.Context(), about))
				commands = append(commands, l.changed(pb.Op_OP_SET_SPACE_PROPERTIES))
				for _, c := range commands {
					wg.Go(func() {
						for attempt := 1; ; attempt++ {
							_, err := l.copier.Handle(t.Context(), &schemas.Delivery{Body: c, Attempt: attempt})
							if err == nil {
								return
							}
							if retry.ClassOf(err) != retry.Transient || attempt == 10 {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			wg.Wait()
			l.has(&about)
		})
	}
}

// TestChunkedItem copies the manifest document of a chunked item over real stores: only after its chunks.
func TestChunkedItem(t *testing.T) {
	stores := spaceStores(t)
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newSpaceLoop(t, stores["file"](t), open(t))
			l.must(l.stores["1"].CreateSpace(t.Context(), storage.Space{Name: spaceOfLoop}))
			document := `<dur:chunksManifest xmlns:dur="duracloud.org"><chunks>`
			put := func(item, text string) *pb.DuplicationCommand {
				o, err := l.stores["1"].Put(t.Context(), spaceOfLoop, item, strings.NewReader(text),
					storage.PutOptions{Size: int64(len(text))})
				l.must(err)
				return l.reported(record.Content(schemas.Copy{Account: "acme", Store: "1", Space: spaceOfLoop, Item: item}, o))
			}
			var chunks []schemas.Body
			for i, text := range []string{"one", "two"} {
				sum, item := md5.Sum([]byte(text)), fmt.Sprintf("film.dura-chunk-%04d", i)
				document += fmt.Sprintf(`<chunk chunkId="%s" index="%d"><byteSize>3</byteSize><md5>%s</md5></chunk>`,
					item, i, hex.EncodeToString(sum[:]))
				chunks = append(chunks, put(item, text))
			}
			manifest := put("film.dura-manifest", document+"</chunks></dur:chunksManifest>")
			for _, chunk := range chunks {
				if _, err := l.run(false, manifest); retry.ClassOf(err) != retry.ClassWait {
					t.Fatalf("got %v, want a wait", err)
				}
				out, err := l.copier.Handle(t.Context(), &schemas.Delivery{Body: chunk, Attempt: 1})
				l.must(err)
				if r := out[len(out)-1].Body.(*pb.DuplicationResult); r.GetResult() != "copied" {
					t.Fatalf("chunk: got %v", r)
				}
			}
			out, err := l.copier.Handle(t.Context(), &schemas.Delivery{Body: manifest, Attempt: 1})
			l.must(err)
			if r := out[len(out)-1].Body.(*pb.DuplicationResult); r.GetResult() != "copied" || r.GetDetail() != "" {
				t.Errorf("document: got %v", r)
			}
		})
	}
}
