package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/s3"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// emitterEnv is the environment variable that makes TestMain run a program that stores through emit instead of tests.
const emitterEnv = "MILLRACE_TEST_EMITTER"

// killed is the space that the program writes to.
const killedSpace = "killed"

// emitterKills is how often the program is killed over each store.
func emitterKills() int { return need.Amount(15, 50, 50) }

// emitterSpec configures the program.
type emitterSpec struct {
	Dir   string // of its outbox and its journals
	Drain bool   // publish the remaining changes and exit
	// The location of the store; without a bucket it is in Dir.
	Endpoint, Bucket, Prefix, Access, Secret string
}

func (e emitterSpec) path(name string) string { return filepath.Join(e.Dir, name) }

func (e emitterSpec) store(ctx context.Context) (storage.Store, error) {
	if e.Bucket == "" {
		return file.Open(file.Config{ID: "1", Root: e.path("store"), Create: true})
	}
	s, err := s3.New(s3.Config{
		ID: "acme/1", Endpoint: e.Endpoint, Bucket: e.Bucket, Prefix: e.Prefix, PathStyle: true,
		Credentials: s3.Credentials{AccessKey: e.Access, SecretKey: e.Secret},
	})
	if err != nil {
		return nil, err
	}
	return s, s.Marker(ctx)
}

// intent is a journal line of an operation before its execution, in the order of the item.
type intent struct{ Op, Item, SHA256 string }

// completed is a journal line of an operation that was certainly executed: the store returned success, or its listing
// showed it to the next process.
type completed struct{ Op, Item, Version string }

// published is a journal line of a published Change.
type published struct{ ID, Op, Item, Version, SHA256, Origin string }

// journalPublisher publishes to a journal.
type journalPublisher struct{ published *storagetest.Journal }

// Publish implements schemas.Publisher. It fails for 20 of every 60 ms.
func (p journalPublisher) Publish(_ context.Context, messages ...schemas.Message) error {
	c := messages[0].Body.(*pb.Change)
	if time.Now().UnixMilli()%60 < 20 {
		return errors.New("unavailable")
	}
	return p.published.Add(published{c.GetId(), c.GetOp().String(), c.GetItem(), c.GetVersion(),
		c.GetDigests()[digest.SHA256], c.GetOrigin().String()})
}

// loggingStore is a store that logs its mutations.
type loggingStore struct {
	storage.Store
	completed *storagetest.Journal
}

func (d loggingStore) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	obj, err := d.Store.Put(ctx, space, item, r, o)
	if err == nil {
		err = d.completed.Add(completed{"PUT", item, obj.Version})
	}
	return obj, err
}

func (d loggingStore) Delete(
	ctx context.Context, space, item string, o storage.DeleteOptions,
) (storage.Deleted, error) {
	gone, err := d.Store.Delete(ctx, space, item, o)
	if err == nil {
		err = d.completed.Add(completed{"DELETE", item, gone.Object.Version})
	}
	return gone, err
}

// emitter runs the program until it is killed or, with Drain, has published the outbox.
func emitter(text string) int {
	var spec emitterSpec
	err := json.Unmarshal([]byte(text), &spec)
	if err == nil {
		err = spec.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (e emitterSpec) run(ctx context.Context) error {
	inner, err := e.store(ctx)
	if err != nil {
		return err
	}
	done, err1 := storagetest.OpenJournal(e.path("completed"))
	intents, err2 := storagetest.OpenJournal(e.path("intents"))
	out, err3 := storagetest.OpenJournal(e.path("published"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	for o, err := range inner.List(ctx, killedSpace, "") { // the mutations that the last process made before it was killed
		if err == nil {
			err = done.Add(completed{"PUT", o.Item, o.Version})
		}
		if err != nil {
			return err
		}
	}
	box, err := outbox.Open(outbox.Config{Dir: e.path("outbox"), Limit: 8 << 20, Segment: 32 << 10})
	if err != nil {
		return err
	}
	s, err := emit.New(loggingStore{inner, done}, emit.Config{
		Account: "acme", Store: "1", Outbox: box, Retry: 10 * time.Millisecond, Wait: 20 * time.Millisecond,
	}, journalPublisher{out})
	if err != nil {
		return err
	}
	if e.Drain {
		for err = s.Flush(ctx); err != nil && box.Stats().Pending > 0 && ctx.Err() == nil; err = s.Flush(ctx) {
		}
		return errors.Join(err, box.Close())
	}
	ended := make(chan error, 9)
	go func() { ended <- s.Run(ctx) }()
	for worker := range 8 {
		go func() { ended <- mutate(ctx, s, intents, worker) }()
	}
	return <-ended
}

// mutate puts and deletes the items of one worker.
func mutate(ctx context.Context, s storage.Store, intents *storagetest.Journal, worker int) error {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(worker)))
	for n := 0; ; n++ {
		item := fmt.Sprintf("own/%d/%d", worker, random.IntN(3))
		var err error
		if random.IntN(4) == 0 {
			err = intents.Add(intent{"DELETE", item, ""})
			if err == nil {
				_, err = s.Delete(ctx, killedSpace, item, storage.DeleteOptions{})
			}
		} else {
			content := fmt.Sprintf("%d/%d/%d", time.Now().UnixNano(), worker, n)
			sum := sha256.Sum256([]byte(content))
			err = intents.Add(intent{"PUT", item, hex.EncodeToString(sum[:])})
			if err == nil {
				_, err = s.Put(ctx, killedSpace, item, strings.NewReader(content), storage.PutOptions{Size: storage.UnknownSize})
			}
		}
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
	}
}

// TestS3EmitKilled kills a program that stores through emit many times at random times, with the file store and an S3
// server. Each mutation that the store shows has exactly one Change, in the order of its item, and there are no other
// Changes.
func TestS3EmitKilled(t *testing.T) {
	need.Integration(t)
	t.Parallel()
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		spec := emitterSpec{Dir: t.TempDir()}
		spec.kill(t)
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: harness.S3Kinds()[0]}), false, false)
		cfg := r.config(t)
		must(t, openS3(t, cfg).WriteMarker(t.Context()))
		emitterSpec{Dir: t.TempDir(), Endpoint: r.URL, Bucket: cfg.Bucket, Prefix: cfg.Prefix, Access: r.Access,
			Secret: r.Secret}.kill(t)
	})
}

// kill runs and kills the program repeatedly, and then checks the store and the journals.
func (e emitterSpec) kill(t *testing.T) {
	t.Helper()
	s, err := e.store(t.Context())
	if err == nil {
		err = s.WriteMarker(t.Context())
	}
	if err == nil {
		err = s.CreateSpace(t.Context(), storage.Space{Name: killedSpace})
	}
	must(t, err)
	for n := range emitterKills() {
		if said, killed := e.start(t, 100*time.Millisecond+rand.N(300*time.Millisecond)); !killed {
			t.Fatalf("start %d: it was not killed and exited: %s", n, said)
		}
	}
	e.Drain = true
	if said, killed := e.start(t, time.Minute); killed || said != "" {
		t.Fatalf("it did not publish the remaining changes: killed %t: %s", killed, said)
	}
	e.judge(t, s)
}

// start runs the program, and kills it after a while.
func (e emitterSpec) start(t *testing.T, after time.Duration) (output string, killed bool) {
	t.Helper()
	text, err := json.Marshal(e)
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), emitterEnv+"="+string(text))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	var killing atomic.Bool
	timer := time.AfterFunc(after, func() { killing.Store(true); _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait() // ProcessState has the exit status
	return out.String(), killing.Load() && cmd.ProcessState.ExitCode() < 0
}

// judge compares the published changes with the executed operations.
func (e emitterSpec) judge(t *testing.T, s storage.Store) {
	t.Helper()
	done := map[completed]bool{}
	for _, d := range storagetest.ReadJournal[completed](t, e.path("completed"), emitterKills()) {
		done[d] = true
	}
	unknown := map[string]int{}
	for _, l := range storagetest.ReadJournal[struct{ Intent struct{ Item string } }](t,
		filepath.Join(e.path("outbox"), "undecided.jsonl"), emitterKills()) {
		unknown[l.Intent.Item]++
	}
	idOf := e.publishedIDs(t, done)
	for d := range done {
		if idOf[d] == "" && unknown[d.Item] == 0 {
			t.Errorf("%+v was executed and not published", d)
		}
	}
	present := 0
	for o, err := range s.List(t.Context(), killedSpace, "") {
		must(t, err)
		present++
		if idOf[completed{"PUT", o.Item, o.Version}] == "" {
			t.Errorf("%s exists in version %s and was not published", o.Item, o.Version)
		}
		if idOf[completed{"DELETE", o.Item, o.Version}] != "" {
			t.Errorf("%s exists in version %s and was published as deleted", o.Item, o.Version)
		}
	}
	t.Logf("%d kills: %d operations, %d published, %d items exist, unknown: %v", emitterKills(), len(done), len(idOf),
		present, unknown)
	if len(idOf) < 2*emitterKills() || present == 0 {
		t.Errorf("%d published and %d items exist: too few", len(idOf), present)
	}
}

// publishedIDs returns the id of each published Change. It checks that each was executed, once, and in order.
func (e emitterSpec) publishedIDs(t *testing.T, done map[completed]bool) map[completed]string {
	t.Helper()
	turn := map[string]int{} // of puts, by item and digest
	for i, a := range storagetest.ReadJournal[intent](t, e.path("intents"), emitterKills()) {
		turn[a.Item+" "+a.SHA256] = 2 * i
	}
	ids, idOf, turnOf, last := map[string]bool{}, map[completed]string{}, map[completed]int{}, map[string]int{}
	for _, c := range storagetest.ReadJournal[published](t, e.path("published"), emitterKills()) {
		if ids[c.ID] {
			continue // the same id was published again
		}
		ids[c.ID] = true
		put := completed{"PUT", c.Item, c.Version}
		d, at := put, turnOf[put]+1 // a delete follows the put that it deletes
		if c.Op == "OP_DELETE" {
			d.Op = "DELETE"
		} else if at = turn[c.Item+" "+c.SHA256]; !slices.Contains([]string{"OP_ADD", "OP_UPDATE"}, c.Op) || c.SHA256 == "" {
			t.Errorf("%+v was published and is no put", c)
		}
		// A delete of a killed process is not in the journal: then its put must be.
		if !done[d] && (d.Op != "DELETE" || !done[put]) {
			t.Errorf("%+v was published and not executed", c)
		}
		if idOf[d] != "" {
			t.Errorf("%+v was also published as %s", c, idOf[d])
		}
		if at < last[c.Item] {
			t.Errorf("%+v is published after a later operation of its item", c)
		}
		idOf[d], turnOf[d], last[c.Item] = c.ID, at, max(at, last[c.Item])
	}
	return idOf
}
