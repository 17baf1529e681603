package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/access"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/outbox"
)

const accessDir = "../deploy/access"

// notified is a topic of another system with notifications about store 2.
const notified = "bucket-events"

// restricted is an installation in which every role has a login of its own on Kafka and ClickHouse, with the rights of
// the files in deploy/access and no others.
type restricted struct {
	brokers *harness.Cluster
	file    string
	cfg     config.Config
	logins  map[schemas.Role]client.Config
}

// logins returns the logins with a file in deploy/access/kafka.
func logins(t *testing.T) (all []schemas.Role) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(accessDir, "kafka", "*.sh"))
	must(t, err)
	for _, f := range files {
		all = append(all, schemas.Role(strings.TrimSuffix(filepath.Base(f), ".sh")))
	}
	return all
}

// granted runs the file of a login in deploy/access/kafka and returns what it adds.
func granted(t *testing.T, login, prefix string, env ...string) (all []harness.ACL) {
	t.Helper()
	dir := t.TempDir()
	stub, seen := filepath.Join(dir, "kafka-acls"), filepath.Join(dir, "calls")
	text := "#!/bin/sh\nfor a; do printf '%s\\n' \"$a\"; done >>" + seen + "\necho >>" + seen + "\n"
	if err := os.WriteFile(stub, []byte(text), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(accessDir, "kafka", login+".sh"))
	cmd.Env = append(append(os.Environ(), "KAFKA_ACLS="+stub, "BOOTSTRAP=broker:9092", "PREFIX="+prefix), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s.sh: %v: %s", login, err, out)
	}
	calls, err := os.ReadFile(seen)
	must(t, err)
	for call := range strings.SplitSeq(strings.TrimSpace(string(calls)), "\n\n") {
		a, err := harness.ParseACL(strings.Split(call, "\n"))
		if err != nil {
			t.Fatalf("%s.sh: %v", login, err)
		}
		all = append(all, a)
	}
	return all
}

// clickHouseUsers returns a configuration with the users and grants of deploy/access/clickhouse.
func clickHouseUsers(t *testing.T, users ...string) string {
	t.Helper()
	var b strings.Builder
	for _, user := range users {
		text, err := os.ReadFile(filepath.Join(accessDir, "clickhouse", user+".sql"))
		must(t, err)
		fmt.Fprintf(&b, "<%s><password>secret-%[1]s</password><networks><ip>127.0.0.1</ip></networks>"+
			"<profile>default</profile><quota>default</quota><grants>", user)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "GRANT ") {
				grant, _, _ := strings.Cut(line, " TO ")
				fmt.Fprintf(&b, "<query>%s</query>", grant)
			}
		}
		fmt.Fprintf(&b, "</grants></%s>", user)
	}
	return "<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users><default><password></password>" +
		"<networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></default>" +
		b.String() + "</users></clickhouse>"
}

// newRestricted starts the brokers and ClickHouse, and gives every login its rights. o has the release of the brokers,
// protocol is that of the groups.
func newRestricted(t *testing.T, o harness.Options, protocol string) *restricted {
	t.Helper()
	t.Setenv("PATH", filepath.Dir(binaries(t))+string(os.PathListSeparator)+os.Getenv("PATH"))
	o.Brokers = 1
	for _, login := range logins(t) {
		o.Users = append(o.Users, string(login))
	}
	w := &restricted{brokers: harness.Kafka(t, o), logins: map[schemas.Role]client.Config{}}
	w.brokers.CreateTopic(t, client.Config{}, notified, 1)
	dir := t.TempDir()
	cfg := config.Default()
	cfg.Delay.Lanes = []config.Lane{{Name: "200ms", Delay: 200 * time.Millisecond}, {Name: "1s", Delay: time.Second}}
	for _, login := range logins(t) {
		c := w.brokers.Config(cfg.Kafka.TopicPrefix)
		c.SASL = &client.SASL{Mechanism: "PLAIN", User: string(login), Password: harness.PasswordOf(string(login))}
		c.Foreign = []string{notified}
		for _, l := range cfg.Delay.Lanes {
			c.Lanes = append(c.Lanes, client.Lane{Name: l.Name, Delay: l.Delay})
		}
		w.logins[login] = c
		for _, a := range granted(t, string(login), cfg.Kafka.TopicPrefix, "POLICY_FOLDER=yes",
			"NOTIFICATIONS="+notified) {
			w.brokers.Grant(t, a)
		}
	}
	server, err := embedded.Start(context.WithoutCancel(t.Context()), embedded.Config{
		Dir: filepath.Join(dir, "engine"), Binary: clickhousetest.Binary(t),
		Users: clickHouseUsers(t, "migrate", "sink", "reader"),
	})
	must(t, err)
	t.Cleanup(func() { _ = server.Close(context.WithoutCancel(t.Context())) }) // libchdb may abort when its clients exit
	acc := config.Account{ID: "acme"}
	for _, id := range []string{"1", "2"} {
		root := filepath.Join(dir, "store-"+id)
		must(t, os.Mkdir(root, 0o755))
		acc.Stores = append(acc.Stores, config.Store{ID: id, Driver: "file", Root: root, Primary: id == "1",
			Repair: "approve", Watch: id == "1"})
	}
	cfg.Accounts = []config.Account{acc}
	cfg.ClickHouse.Addresses = []string{server.Addr()}
	cfg.Kafka.Brokers, cfg.Kafka.Partitions, cfg.Kafka.Replication = w.logins[access.Migrate].Brokers, 2, 1
	cfg.Kafka.MinInSync, cfg.Kafka.GroupProtocol = 1, protocol
	if protocol == "classic" { // of the others the brokers set it
		cfg.Kafka.SessionTimeout = 6 * time.Second
	}
	cfg.Kafka.SASL.Mechanism = "PLAIN"
	cfg.Sink.Age = 100 * time.Millisecond
	cfg.Fixity.Settle, cfg.Fixity.MinInterval = time.Millisecond, time.Millisecond
	cfg.Fixity.Recheck = []time.Duration{200 * time.Millisecond}
	cfg.Duplication.Wait = []time.Duration{200 * time.Millisecond, time.Second}
	cfg.Trim.Schedule = schedule.MustParse("every 1m")
	cfg.Ingest.Notifications = []config.Notification{{Topic: notified, Account: "acme", Store: "2"}}
	p := &setup{file: filepath.Join(dir, "millrace.yaml")}
	p.write(t, "policies/duplication-accounts.json", `["acme"]`)
	p.write(t, "policies/acme-duplication-policy.json", `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}]}`)
	var text bytes.Buffer
	must(t, config.Print(&text, &cfg, nil))
	p.write(t, "millrace.yaml", text.String())
	w.file, w.cfg = p.file, cfg
	return w
}

// env returns the variables with which a process logs in.
func (w *restricted) env(login schemas.Role) []string {
	user := "reader"
	switch login {
	case access.Migrate:
		user = "migrate"
	case schemas.RoleSink:
		user = "sink"
	}
	env := append(os.Environ(),
		"MILLRACE_KAFKA__SASL__USER="+string(login), "MILLRACE_KAFKA__SASL__PASSWORD=env:KAFKA_PASSWORD",
		"KAFKA_PASSWORD="+harness.PasswordOf(string(login)),
		"MILLRACE_CLICKHOUSE__USER="+user, "MILLRACE_CLICKHOUSE__PASSWORD=env:CLICKHOUSE_PASSWORD",
		"CLICKHOUSE_PASSWORD=secret-"+user)
	if login == schemas.RolePlanner {
		env = append(env, "MILLRACE_POLICIES__FOLDER="+filepath.Join(filepath.Dir(w.file), "policies"))
	}
	return env
}

func (w *restricted) command(t *testing.T, login schemas.Role, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binaries(t), append(args, "--config", w.file)...)
	cmd.Env = w.env(login)
	return cmd
}

// want runs a command as a login and fails the test unless it ends with code and prints said.
func (w *restricted) want(t *testing.T, login schemas.Role, code int, said string, args ...string) string {
	t.Helper()
	cmd := w.command(t, login, args...)
	stop := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	out, err := cmd.CombinedOutput()
	stop.Stop()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), said) {
		t.Fatalf("%s: millrace %s: exit code %d, want %d, and %q in:\n%s",
			login, strings.Join(args, " "), got, code, said, out)
	}
	return string(out)
}

// A roleProcess runs one role.
type roleProcess struct {
	cmd  *exec.Cmd
	out  *lockedBuffer
	done chan struct{}
}

// lockedBuffer collects what a process prints.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs a role in a process with its own login. At the end of the test it must stop cleanly, having been refused
// nothing, unless it has ended before.
func (w *restricted) start(t *testing.T, role schemas.Role) *roleProcess {
	t.Helper()
	cmd := w.command(t, role, "run", "--roles", string(role))
	p := &roleProcess{cmd: cmd, out: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	must(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ProcessState has the result
	}()
	t.Cleanup(func() {
		select {
		case <-p.done:
			return
		default:
		}
		_ = p.cmd.Process.Signal(os.Interrupt) // it may end by itself
		<-p.done
		said := p.out.String()
		if code := p.cmd.ProcessState.ExitCode(); code != 0 || strings.Contains(said, "AUTHORIZATION_FAILED") || t.Failed() {
			t.Errorf("%s ended with exit code %d, and printed:\n%s", role, code, said)
		}
	})
	return p
}

// ended waits until a process has ended, and returns its exit code and what it printed.
func (p *roleProcess) ended(t *testing.T) (int, string) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(90 * time.Second):
		t.Fatalf("it goes on, and has printed:\n%s", p.out)
	}
	return p.cmd.ProcessState.ExitCode(), p.out.String()
}

// incidents returns the keys of the open incidents.
func (w *restricted) incidents(t *testing.T) (keys []string) {
	t.Helper()
	out, err := w.command(t, access.Viewer, "incident", "list", "-o", "json").Output()
	if err != nil {
		t.Fatalf("incident list: %v", err)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	for dec.More() {
		var row any
		if err := dec.Decode(&row); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		rows, ok := row.([]any)
		if !ok {
			rows = []any{row}
		}
		for _, r := range rows {
			keys = append(keys, fmt.Sprint(r.(map[string]any)["key"]))
		}
	}
	return keys
}

// TestLeastPrivilege runs every role in a process of its own, with the rights of deploy/access: items that a program
// stores are copied and checked, a delete follows, a damaged copy is repaired after its approval, and a notification of
// another system is handled. A role with one right fewer does not start, or ends, and names the right; so does the
// program.
func TestLeastPrivilege(t *testing.T) {
	need.Integration(t)
	w := newRestricted(t, harness.Options{}, "classic")
	w.prepare(t)
	t.Run("one right fewer", w.oneRightFewer)
	t.Run("at the start", w.refusedAtStart)
	running := w.startAll(t)
	p := w.program(t)
	for _, item := range []string{"a", "b", "c"} {
		p.put(t, item)
		w.copied(t, item)
	}
	if _, err := p.Delete(t.Context(), "s", "b", storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 2*time.Minute, "delete the copy", func(ctx context.Context) error {
		if _, err := w.store(t, "2").Stat(ctx, "s", "b"); !errors.Is(err, storage.ErrNotFound) {
			return fmt.Errorf("%w: %w", errNotYet, err)
		}
		return nil
	})
	w.repair(t)
	w.notify(t)

	t.Run("of a program", func(t *testing.T) { w.refusedProgram(t, p) })
	t.Run("while it runs", func(t *testing.T) { w.withdrawnWhileRunning(t, running, p) })
}

// TestLeastPrivilegeElsewhere runs the roles with the same rights on the oldest supported Kafka, and in groups of the
// protocol consumer.
func TestLeastPrivilegeElsewhere(t *testing.T) {
	need.Full(t)
	for name, tc := range map[string]struct {
		options  harness.Options
		protocol string
	}{
		"oldest Kafka":      {harness.Options{Oldest: true}, "classic"},
		"protocol consumer": {harness.Options{}, "consumer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRestricted(t, tc.options, tc.protocol)
			w.prepare(t)
			t.Run("at the start", w.refusedAtStart)
			running := w.startAll(t)
			p := w.program(t)
			p.put(t, "a")
			w.copied(t, "a")
			w.repair(t)
			w.notify(t)
			g, err := w.brokers.Describe(t.Context(), w.cfg.Kafka.TopicPrefix+"copier")
			if err != nil || g.Kind != tc.protocol {
				t.Errorf("the copier's group is %+v, %v; want one of kind %s", g, err, tc.protocol)
			}
			t.Run("of a program", func(t *testing.T) { w.refusedProgram(t, p) })
			t.Run("while it runs", func(t *testing.T) { w.withdrawnWhileRunning(t, running, p) })
		})
	}
}

// prepare makes tables, topics and markers.
func (w *restricted) prepare(t *testing.T) {
	t.Helper()
	w.want(t, access.Migrate, 0, "applied", "migrate")
	w.want(t, access.Migrate, 0, "nothing to apply", "migrate")
	for _, id := range []string{"1", "2"} {
		w.want(t, access.Operator, 0, "has its marker", "store", "init", "acme/"+id)
	}
}

// startAll runs each role in a process of its own.
func (w *restricted) startAll(t *testing.T) map[schemas.Role]*roleProcess {
	t.Helper()
	running := map[schemas.Role]*roleProcess{}
	for _, role := range app.Roles() {
		running[role] = w.start(t, role)
	}
	return running
}

// store opens a store beside the roles.
func (w *restricted) store(t *testing.T, id string) *file.Store {
	t.Helper()
	i := slices.IndexFunc(w.cfg.Accounts[0].Stores, func(c config.Store) bool { return c.ID == id })
	s, err := file.Open(file.Config{ID: schemas.Key("acme", id), Root: w.cfg.Accounts[0].Stores[i].Root})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// copied waits for the copy of an item.
func (w *restricted) copied(t *testing.T, item string) {
	t.Helper()
	dest := w.store(t, "2")
	harness.Eventually(t, 2*time.Minute, "copy "+item, func(ctx context.Context) error {
		_, err := dest.Stat(ctx, "s", item)
		return err
	})
}

// A program stores items in store 1 through the decorator, with the login of writer.
type program struct {
	*emit.Store
}

func (w *restricted) program(t *testing.T) program {
	t.Helper()
	producer, err := kafka.NewProducer(w.logins[access.Writer], "test")
	must(t, err)
	t.Cleanup(producer.Close)
	box, err := outbox.Open(outbox.Config{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(func() { box.Close() })
	s, err := emit.New(w.store(t, "1"), emit.Config{Account: "acme", Store: "1", Agent: "test", Outbox: box}, producer)
	must(t, err)
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
	return program{s}
}

func (p program) try(ctx context.Context, item string) error {
	_, err := p.Put(ctx, "s", item, strings.NewReader("content of "+item), storage.PutOptions{Size: storage.UnknownSize})
	return err
}

func (p program) put(t *testing.T, item string) {
	t.Helper()
	if err := p.try(t.Context(), item); err != nil {
		t.Fatalf("put %s: %v", item, err)
	}
}

// refusedProgram takes the rights of writer away, one by one. The error names the right, and with it again the change
// that could not be published is.
func (w *restricted) refusedProgram(t *testing.T, p program) {
	for i, r := range access.Rights(w.logins[access.Writer], access.Writer) {
		item := fmt.Sprint("refused-", i)
		w.brokers.Withdraw(t, acl(access.Writer, r))
		harness.Eventually(t, 20*time.Second, "refuse it", func(ctx context.Context) error {
			err := errors.Join(p.try(ctx, item), p.Flush(ctx))
			if !errors.Is(err, client.ErrAccess) || !strings.Contains(err.Error(), "the login lacks "+r.String()) {
				return fmt.Errorf("%w: %w", errNotYet, err)
			}
			return nil
		})
		w.brokers.Grant(t, acl(access.Writer, r))
		harness.Eventually(t, time.Minute, "publish it", p.Flush)
		w.copied(t, item)
	}
}

// notification is what MinIO writes when an object is stored.
func notification(bucket, key string) []byte {
	return fmt.Appendf(nil, `{"Records":[{"eventSource":"minio:s3","eventName":"s3:ObjectCreated:Put",`+
		`"eventTime":"2026-05-04T10:00:00.25Z","userIdentity":{"principalId":"ann"},`+
		`"s3":{"bucket":{"name":%q},"object":{"key":%q,"sequencer":"17"}}}]}`, bucket, key)
}

// notify stores an item in store 2 as a gateway does, and writes its notification to the topic of the gateway. The
// change that follows is in the history of the item.
func (w *restricted) notify(t *testing.T) {
	t.Helper()
	path := filepath.Join(w.cfg.Accounts[0].Stores[1].Root, "s", "from a gateway")
	must(t, os.WriteFile(path, []byte("x"), 0o644))
	w.brokers.Write(t, client.Config{}, harness.Record{Partition: -1,
		Record: schemas.Record{Topic: notified, Value: notification("s", "from+a+gateway")}})
	harness.Eventually(t, time.Minute, "handle the notification", func(context.Context) error {
		cmd := w.command(t, access.Viewer, "object", "show", "acme/s/from a gateway", "-o", "json")
		out, err := cmd.Output()
		if err != nil || !bytes.Contains(out, []byte("add (notification)")) {
			return fmt.Errorf("%w: %v in %s", errNotYet, err, out)
		}
		return nil
	})
}

// damage damages a copy, and returns its path, the bytes before, and the key of the incident that a sweep leads to.
func (w *restricted) damage(t *testing.T, item string) (path string, was []byte, key string) {
	t.Helper()
	path, err := w.store(t, "2").Path("s", item)
	must(t, err)
	w.settled(t, item)
	if was, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(path, bytes.ToUpper(was), 0o644))
	w.want(t, access.Operator, 0, "checks requested", "sweep", "start", "fixity", "--store", "2", "--all")
	harness.Eventually(t, 2*time.Minute, "open an incident", func(context.Context) error {
		for _, k := range w.incidents(t) {
			if strings.HasPrefix(k, "acme/2/s/"+item) {
				key = k
				return nil
			}
		}
		return errNotYet
	})
	return path, was, key
}

// settled waits until the copy of an item is recorded and nothing more happens to it: store 1 is watched, so there is a
// second change of each item, which would copy it again.
func (w *restricted) settled(t *testing.T, item string) {
	t.Helper()
	var last []byte
	since := time.Now()
	harness.Eventually(t, time.Minute, "copy "+item+" for the last time", func(context.Context) error {
		now, err := w.command(t, access.Viewer, "object", "show", "acme/s/"+item).Output()
		if err != nil || !bytes.Equal(now, last) {
			last, since = now, time.Now()
		}
		if time.Since(since) < 3*time.Second || !bytes.Contains(now, []byte("(after_copy)")) {
			return fmt.Errorf("%w: %s", errNotYet, now)
		}
		return nil
	})
}

// repair damages a copy, and approves its repair.
func (w *restricted) repair(t *testing.T) {
	t.Helper()
	path, was, key := w.damage(t, "a")
	w.want(t, access.Operator, 0, "the incident is closed", "incident", "approve", key, "--wait")
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, was) {
		t.Errorf("after the repair: %q, %v, want %q", now, err, was)
	}
}

// acl returns the ACL of one right.
func acl(login schemas.Role, r access.Right) harness.ACL {
	a := harness.ACL{User: string(login), Operation: r.Operation, Prefixed: r.Prefixed}
	if r.Resource == access.Group {
		a.Groups = []string{r.Name}
	} else {
		a.Topics = []string{r.Name}
	}
	return a
}

// oneRightFewer checks that brokers report each right of each login that is withdrawn, by itself; in the short form the
// first right of each login, one of the middle, and the last.
func (w *restricted) oneRightFewer(t *testing.T) {
	n := 0
	for login, cfg := range w.logins {
		rights := access.Rights(cfg, login)
		withdrawn := rights
		if need.Amount(3, len(rights), len(rights)) < len(rights) {
			withdrawn = []access.Right{rights[0], rights[len(rights)/2], rights[len(rights)-1]}
		}
		for _, r := range withdrawn {
			n++
			w.brokers.Withdraw(t, acl(login, r))
			harness.Eventually(t, 20*time.Second, fmt.Sprintf("%s without %s", login, r), func(ctx context.Context) error {
				err := access.Check(ctx, cfg, rights)
				lacks := (*access.MissingError)(nil)
				if !errors.As(err, &lacks) || len(lacks.Rights) != 1 || lacks.Rights[0] != r ||
					!strings.Contains(err.Error(), r.String()) {
					return fmt.Errorf("%w: %w", errNotYet, err)
				}
				return nil
			})
			w.brokers.Grant(t, acl(login, r))
		}
		harness.Eventually(t, 20*time.Second, string(login)+" with all rights", func(ctx context.Context) error {
			return access.Check(ctx, cfg, rights)
		})
	}
	t.Logf("%d rights", n)
}

// refusedAtStart starts processes that lack a right.
func (w *restricted) refusedAtStart(t *testing.T) {
	prefix := w.cfg.Kafka.TopicPrefix
	for name, tc := range map[string]struct {
		role schemas.Role
		acl  harness.ACL
		says string
	}{
		"topic": {schemas.RoleCopier, harness.ACL{Operation: "Write", Topics: []string{prefix + "fixity.high"}},
			"user copier lacks these Kafka rights: Write on topic millrace.fixity.high (such as kafka-acls.sh --add " +
				"--allow-principal User:copier --operation Write --topic millrace.fixity.high)"},
		"group": {schemas.RoleDelayer, harness.ACL{Operation: "Read", Groups: []string{prefix + "delayer"}},
			"user delayer lacks these Kafka rights: Read on group millrace.delayer"},
		"notifications": {schemas.RoleIngester, harness.ACL{Operation: "Read", Topics: []string{notified}},
			"user ingester lacks these Kafka rights: Read on topic bucket-events"},
		"policy folder": {schemas.RolePlanner, harness.ACL{Operation: "Write", Topics: []string{prefix + "policies"}},
			"user planner lacks these Kafka rights: Write on topic millrace.policies"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.acl.User = string(tc.role)
			w.brokers.Withdraw(t, tc.acl)
			defer w.brokers.Grant(t, tc.acl)
			w.want(t, tc.role, 5, tc.says, "run", "--roles", string(tc.role))
		})
	}
}

// withdrawnWhileRunning withdraws rights from running processes. They end and say which; with the right again, nothing
// is lost.
func (w *restricted) withdrawnWhileRunning(t *testing.T, running map[schemas.Role]*roleProcess, stored program) {
	prefix := w.cfg.Kafka.TopicPrefix
	for i, tc := range []struct {
		role schemas.Role
		acl  harness.ACL
		says string
	}{
		{schemas.RolePlanner, harness.ACL{Operation: "Read", Topics: []string{prefix + "changes"}},
			"the login lacks Read on topic millrace.changes"},
		{schemas.RoleCopier, harness.ACL{Operation: "Write", Topics: []string{prefix + "changes"}},
			"the login lacks Write on topic millrace.changes"},
		{schemas.RoleCopier, harness.ACL{Operation: "Read", Groups: []string{prefix + "copier"}},
			"the login lacks Read on group millrace.copier"},
		{schemas.RoleIngester, harness.ACL{Operation: "Read", Topics: []string{notified}},
			"the login lacks Read on topic bucket-events"},
		{schemas.RoleSink, harness.ACL{Operation: "Read", Groups: []string{prefix + "state"}},
			"the login lacks Read on group millrace.state"},
	} {
		tc.acl.User = string(tc.role)
		w.brokers.Withdraw(t, tc.acl)
		item := fmt.Sprint("later-", i)
		stored.put(t, item)
		code, said := running[tc.role].ended(t)
		if code != 1 || !strings.Contains(said, tc.says) {
			t.Errorf("%s without %+v: exit code %d, want 1, and %q in:\n%s", tc.role, tc.acl, code, tc.says, said)
		}
		w.brokers.Grant(t, tc.acl)
		harness.Eventually(t, 20*time.Second, "the right", func(ctx context.Context) error {
			return access.Check(ctx, w.logins[tc.role], access.Rights(w.logins[tc.role], tc.role))
		})
		p := w.start(t, tc.role)
		running[tc.role] = p
		harness.Eventually(t, time.Minute, "start again", func(context.Context) error {
			if !strings.Contains(p.out.String(), "msg=run ") {
				return errNotYet
			}
			return nil
		})
		w.copied(t, item)
	}
}
