// Package demo does the main job once, on real files, and shows it: files become items
// of a first store, copies in two more, every copy is checked; then some are harmed
// behind the system's back, found, and repaired.
//
// It promises to say that all went well only if all of it did, to read the folder that
// it is given and never write there, and to go on where it was stopped or killed.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage/emit"
)

// ErrFindings means that not all of the demo came true.
var ErrFindings = errors.New("not all of the demo came true")

// The demo's own names.
const (
	account = "acme"
	space   = "files"
	primary = "1"
	agent   = "millrace-demo"
)

var stores = []string{primary, "2", "3"}

// Config says what the demo reads and where it works.
type Config struct {
	Dir   string // the folder to read; empty: the Go distribution's src tree
	Items int    // at most so many files; 0: all
	State string // state directory; empty: a new one that is removed at the end
	Keep  bool   // leave the new one
	// Stores is what stores 2 and 3 are: file, or s3, on a real S3 server on loopback. Empty: as in the state directory, else file.
	Stores string
	Server string // program of the S3 server; empty: peers/versitygw beside this one
	JSON   bool
}

// A demo is one run of it.
type demo struct {
	cfg        Config
	checkpoint *checkpoint
	app        *app.App
	server     *server // nil: stores 2 and 3 are of files too
	emit       *emit.Store
	display    *progress.Display
	// copies and checks are shown while files are written and after.
	copies, checks *progress.Step
	out            io.Writer // for what the person reads on the way
}

// Run does the whole of it, or what is left of it. Progress goes to stderr, the summary to stdout.
func Run(ctx context.Context, cfg Config, stdout, stderr io.Writer) (err error) {
	if cfg.Items < 0 {
		return fmt.Errorf("%w: --items must not be negative", usage.Err)
	}
	if err := cfg.checkStores(); err != nil {
		return err
	}
	if cfg.Dir, err = Folder(cfg.Dir); err != nil {
		return err
	}
	made := cfg.State == ""
	if made {
		if cfg.State, err = os.MkdirTemp("", "millrace-demo-"); err != nil {
			return fmt.Errorf("make a state directory: %w", err)
		}
	}
	if cfg.State, err = filepath.Abs(cfg.State); err != nil {
		return err
	}
	d := &demo{cfg: cfg, out: stderr}
	result, err := d.run(ctx)
	switch {
	case err == nil && made && !cfg.Keep && result.OK: // what did not come true is left for a person to look into
		if err := os.RemoveAll(cfg.State); err != nil {
			return fmt.Errorf("remove the state directory: %w", err)
		}
		result.State = ""
	case made && (d.checkpoint == nil || d.checkpoint.Step == 0): // nothing was begun
		return errors.Join(err, os.RemoveAll(cfg.State))
	case err != nil:
		fmt.Fprintf(stderr, "\nThe state is in %s (log: millrace.log). To go on:\n  %s\n", cfg.State, d.resumeCommand())
		return err
	}
	if err := result.write(stdout, cfg.JSON); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	if !result.OK {
		return fmt.Errorf("%w: %s", ErrFindings, result.missed())
	}
	return nil
}

// again is the command line that goes on with this demo.
func (d *demo) resumeCommand() string {
	server := ""
	if d.cfg.Server != "" {
		server = " --s3-server " + strconv.Quote(d.cfg.Server)
	}
	return fmt.Sprintf("millrace demo --state %s%s %s", strconv.Quote(d.cfg.State), server, strconv.Quote(d.cfg.Dir))
}

// checkStores refuses kinds of stores that there are not, or for which something is missing.
func (c Config) checkStores() error {
	switch c.Stores {
	case "", kindFile:
		return nil
	case kindS3:
		_, err := c.program()
		return err
	}
	return fmt.Errorf("%w: --stores is %s or %s, not %q", usage.Err, kindFile, kindS3, c.Stores)
}

// Folder returns the absolute path of the folder to read: dir, or Go's own sources if dir is empty.
func Folder(dir string) (string, error) {
	if dir == "" {
		root := goroot()
		if root == "" {
			return "", fmt.Errorf("%w: no Go distribution found to take files from: name a folder of your own", usage.Err)
		}
		dir = filepath.Join(root, "src")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%w: %w", usage.Err, err)
	}
	return dir, nil
}

func goroot() string {
	for _, dir := range []string{os.Getenv("GOROOT"), goEnv("GOROOT"), runtime.GOROOT()} { //nolint:staticcheck // the last resort
		if dir != "" {
			return dir
		}
	}
	return ""
}

// run opens the state, starts all roles, and does the steps that are left.
func (d *demo) run(ctx context.Context) (res *result, err error) {
	// Everything that a person may have got wrong is looked at before anything is made.
	files, skipped, err := scan(ctx, d.cfg.Dir, d.cfg.Items)
	if err != nil {
		return nil, err
	}
	five, err := pickDistinct(d.cfg.Dir, files)
	if err != nil {
		return nil, err
	}
	d.display = progress.New(d.out)
	defer d.display.Close()
	state, log, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, state.Close(ctx), log.Close()) }()
	if d.checkpoint, err = loadCheckpoint(state.Path("demo.json")); err != nil {
		return nil, err
	}
	if err := d.initCheckpoint(files, skipped, five); err != nil {
		return nil, err
	}
	if err := d.serve(ctx, state); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.server.close()) }()
	cfg, err := d.configure(state)
	if err != nil {
		return nil, err
	}
	if d.app, err = app.Open(ctx, cfg, app.Options{Log: slog.New(slog.NewTextHandler(log, nil)), Drain: app.QuickDrain}); err != nil {
		return nil, err
	}
	defer d.app.Close()
	if err := d.prepare(ctx); err != nil {
		return nil, err
	}
	err = d.app.RunWhile(ctx, roles(), func(ctx context.Context) (err error) {
		res, err = d.steps(ctx)
		return err
	}, d.emit.Run, state.Watch, d.server.watch)
	if err != nil {
		return nil, err
	}
	return res, nil
}

// roles are all but the sweeper: the demo begins its rounds itself.
func roles() []schemas.Role {
	return slices.DeleteFunc(app.Roles(), func(r schemas.Role) bool { return r == schemas.RoleSweeper })
}

func (d *demo) open(ctx context.Context) (*app.State, *os.File, error) {
	step := d.display.Step("start the parts", 1)
	state, err := app.OpenState(ctx, app.StateConfig{Dir: d.cfg.State, Log: slog.New(slog.DiscardHandler), Progress: d.display})
	if err != nil {
		return nil, nil, err
	}
	log, err := os.OpenFile(state.Path("millrace.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the log: %w", err), state.Close(ctx))
	}
	step.Set(1)
	step.End(true)
	return state, log, nil
}

// choose notes in the memo, once, what this demo works on.
func (d *demo) initCheckpoint(files []file, skipped []skip, five []string) error {
	m := d.checkpoint
	if m.Step > 0 {
		if m.Dir != d.cfg.Dir {
			return fmt.Errorf("%w: the demo in %s is about %s, not %s: name that folder, or another --state",
				app.ErrPrecondition, d.cfg.State, m.Dir, d.cfg.Dir)
		}
		m.Kind = cmp.Or(m.Kind, kindFile)
		if d.cfg.Stores != "" && d.cfg.Stores != m.Kind {
			return fmt.Errorf("%w: the demo in %s has stores of kind %s, not %s: leave --stores out, or name another --state",
				app.ErrPrecondition, d.cfg.State, m.Kind, d.cfg.Stores)
		}
		return nil
	}
	m.Kind = cmp.Or(d.cfg.Stores, kindFile)
	m.Dir, m.Files, m.Skipped, m.Started = d.cfg.Dir, files, skipped, time.Now().UTC()
	m.Picks = picks{Flip: five[0], Truncate: five[1], Remove: five[2], Replace: five[3], Delete: five[4]}
	m.Rounds = map[string]time.Time{}
	return m.completed(stepWrite)
}

// configure writes the demo's configuration into its state directory, where the other
// commands find it, and points it at the running engines. What takes days in earnest
// takes moments here.
func (d *demo) configure(state *app.State) (*config.Config, error) {
	cfg := config.Default()
	acc := config.Account{ID: account}
	for _, id := range stores {
		if d.server != nil && id != primary {
			acc.Stores = append(acc.Stores, d.server.store(id))
			continue
		}
		if err := os.MkdirAll(state.Path("stores", id), 0o755); err != nil {
			return nil, fmt.Errorf("make a store: %w", err)
		}
		acc.Stores = append(acc.Stores, config.Store{ID: id, Driver: "file", Root: state.Path("stores", id), Primary: id == primary})
	}
	cfg.Accounts = []config.Account{acc}
	cfg.Delay.Lanes = []config.Lane{{Name: "200ms", Delay: 200 * time.Millisecond}, {Name: "1s", Delay: time.Second}, {Name: "5s", Delay: 5 * time.Second}}
	cfg.Fixity.MinInterval = time.Millisecond
	cfg.Fixity.Settle = 500 * time.Millisecond
	cfg.Fixity.Recheck = []time.Duration{500 * time.Millisecond, time.Second}
	cfg.Duplication.Wait = []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second}
	cfg.Outbox.Dir = state.Path("outbox")
	cfg.Sink.Age = 500 * time.Millisecond
	if err := app.SaveConfig(state, &cfg); err != nil {
		return nil, err
	}
	saved, _, err := config.Load(config.Sources{File: app.ConfigIn(d.cfg.State)})
	if err != nil {
		return nil, fmt.Errorf("read back the demo's configuration: %w", err)
	}
	state.Configure(saved)
	return saved, nil
}

// prepare makes tables, topics and stores, as far as they are not there.
func (d *demo) prepare(ctx context.Context) error {
	if _, err := d.app.Migrate(ctx); err != nil {
		return err
	}
	for _, id := range stores {
		if err := d.app.InitStore(ctx, account, id); err != nil {
			return fmt.Errorf("prepare store %s: %w", id, err)
		}
	}
	var err error
	d.emit, err = d.app.Emitting(account, primary, agent)
	return err
}

// steps does what is left to do.
func (d *demo) steps(ctx context.Context) (*result, error) {
	doc, err := policy.Parse([]byte(`{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "1", "destStoreId": "3"}]}`))
	if err != nil {
		return nil, err
	}
	if err := d.app.SetPolicy(ctx, account, doc, agent); err != nil {
		return nil, err
	}
	for _, s := range []struct {
		step int
		do   func(context.Context) error
	}{
		{stepWrite, d.write}, {stepCopy, d.waitCopied}, {stepDamage, d.damage}, {stepSweep, d.sweep}, {stepRepair, d.repair},
	} {
		if d.checkpoint.Step > s.step {
			continue
		}
		if err := s.do(ctx); err != nil {
			var short *shortfall
			if errors.As(err, &short) {
				return d.result(ctx, short)
			}
			return nil, err
		}
		if err := d.checkpoint.completed(s.step + 1); err != nil {
			return nil, err
		}
	}
	return d.result(ctx, nil)
}

// goEnv asks the go command, where there is one.
func goEnv(name string) string {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
