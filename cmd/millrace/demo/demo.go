// Package demo demonstrates millrace on real files. It writes the files as items to one store,
// waits for verified copies in two others, damages some copies bypassing millrace, and shows
// that the damage is found and repaired.
//
// It reports success only if every step succeeded. It reads the given folder and never writes
// there. After a stop or a kill it resumes.
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
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage/emit"
)

// ErrFindings reports that a step of the demo did not succeed.
var ErrFindings = errors.New("the demo did not succeed")

// The names that the demo uses.
const (
	account = "acme"
	space   = "files"
	primary = "1"
	agent   = "millrace-demo"
)

var stores = []string{primary, "2", "3"}

// Config configures the demo.
type Config struct {
	Dir   string // the folder to read; empty: the src directory of the Go distribution
	Items int    // maximum number of files; 0: all
	State string // state directory; empty: a new one, which is removed at the end
	Keep  bool   // keep a new state directory
	// Stores is the kind of stores 2 and 3: file, or s3 on an S3 server on loopback. Empty: the kind
	// recorded in the state directory; file for a new one.
	Stores string
	Server string // program of the S3 server; empty: peers/versitygw in the directory of this program
	JSON   bool
}

// A demo is one run of the demonstration.
type demo struct {
	cfg        Config
	checkpoint *checkpoint
	app        *app.App
	server     *server // nil: stores 2 and 3 have driver file
	emit       *emit.Store
	display    *progress.Display
	// copies and checks are steps that are shown during and after the writing of files.
	copies, checks *progress.Step
	out            io.Writer // for messages during the run
}

// Run runs the demo, or the remaining steps of a stopped one. Progress goes to stderr, the summary
// to stdout.
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
	case err == nil && made && !cfg.Keep && result.OK: // after a failure the state is kept for inspection
		if err := os.RemoveAll(cfg.State); err != nil {
			return fmt.Errorf("remove the state directory: %w", err)
		}
		result.State = ""
	case made && (d.checkpoint == nil || d.checkpoint.Step == 0): // nothing was started
		return errors.Join(err, os.RemoveAll(cfg.State))
	case errors.Is(err, precondition.Err) && !made: // the same command is refused again
		return err
	case err != nil:
		fmt.Fprintf(stderr, "\nThe state is in %s (log: millrace.log). To resume:\n  %s\n", cfg.State, d.resumeCommand())
		return err
	}
	if err := result.write(stdout, cfg.JSON); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	if !result.OK {
		return fmt.Errorf("%w: %s", ErrFindings, strings.Join(result.Missed, "; "))
	}
	return nil
}

// resumeCommand returns the command line that resumes this demo.
func (d *demo) resumeCommand() string {
	server := ""
	if d.cfg.Server != "" {
		server = " --s3-server " + strconv.Quote(d.cfg.Server)
	}
	return fmt.Sprintf("millrace demo --state %s%s %s", strconv.Quote(d.cfg.State), server, strconv.Quote(d.cfg.Dir))
}

// checkStores refuses an unknown kind of stores, and s3 without a server program.
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

// Folder returns the absolute path of the folder to read: dir, or the sources of Go if dir is
// empty.
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
	fallback := runtime.GOROOT() //nolint:staticcheck // deprecated, but used last
	for _, dir := range []string{os.Getenv("GOROOT"), goEnv("GOROOT"), fallback} {
		if dir != "" {
			return dir
		}
	}
	return ""
}

// run opens the state, starts all roles, and runs the remaining steps.
func (d *demo) run(ctx context.Context) (res *result, err error) {
	// Check the inputs before anything is created.
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
	o := app.Options{Log: slog.New(slog.NewTextHandler(log, nil)), Drain: app.QuickDrain}
	if d.app, err = app.Open(ctx, cfg, o); err != nil {
		return nil, err
	}
	defer d.app.Close()
	if err := d.prepare(ctx, cfg, o.Log); err != nil {
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

// roles returns all roles except the sweeper: the demo starts the rounds itself.
func roles() []schemas.Role {
	return slices.DeleteFunc(app.Roles(), func(r schemas.Role) bool { return r == schemas.RoleSweeper })
}

func (d *demo) open(ctx context.Context) (*statedir.Dir, *os.File, error) {
	step := d.display.Step("start the parts", 1)
	state, err := statedir.Open(ctx,
		statedir.Config{Dir: d.cfg.State, Log: slog.New(slog.DiscardHandler), Progress: d.display})
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

// initCheckpoint records the folder, files and kind of stores of a new demo. For a resumed one it
// checks them.
func (d *demo) initCheckpoint(files []file, skipped []skip, five []string) error {
	m := d.checkpoint
	if m.Step > 0 {
		if m.Dir != d.cfg.Dir {
			return fmt.Errorf("%w: the demo in %s uses %s, not %s: name that folder, or another --state",
				precondition.Err, d.cfg.State, m.Dir, d.cfg.Dir)
		}
		m.Kind = cmp.Or(m.Kind, kindFile)
		if d.cfg.Stores != "" && d.cfg.Stores != m.Kind {
			return fmt.Errorf("%w: the demo in %s has stores of kind %s, not %s: leave --stores out, or name another --state",
				precondition.Err, d.cfg.State, m.Kind, d.cfg.Stores)
		}
		return nil
	}
	m.Kind = cmp.Or(d.cfg.Stores, kindFile)
	m.Dir, m.Files, m.Skipped, m.Started = d.cfg.Dir, files, skipped, time.Now().UTC()
	m.Picks = picks{Flip: five[0], Truncate: five[1], Remove: five[2], Replace: five[3], Delete: five[4]}
	m.Rounds = map[string]time.Time{}
	return m.completed(stepWrite)
}

// configure writes the configuration to the state directory, where other commands find it, and
// adjusts it to the running engines. It uses waits of seconds instead of hours and days.
func (d *demo) configure(state *statedir.Dir) (*config.Config, error) {
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
		acc.Stores = append(acc.Stores,
			config.Store{ID: id, Driver: "file", Root: state.Path("stores", id), Primary: id == primary})
	}
	cfg.Accounts = []config.Account{acc}
	cfg.Delay.Lanes = []config.Lane{
		{Name: "200ms", Delay: 200 * time.Millisecond},
		{Name: "1s", Delay: time.Second},
		{Name: "5s", Delay: 5 * time.Second},
	}
	cfg.Fixity.MinInterval = time.Millisecond
	cfg.Fixity.Settle = 500 * time.Millisecond
	cfg.Reconcile.Settle = 500 * time.Millisecond
	cfg.Fixity.Recheck = []time.Duration{500 * time.Millisecond, time.Second}
	cfg.Duplication.Wait = []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second}
	cfg.Outbox.Dir = state.Path("outbox")
	cfg.Sink.Age = 500 * time.Millisecond
	if err := state.SaveConfig(&cfg); err != nil {
		return nil, err
	}
	saved, _, err := config.Load(config.Sources{File: statedir.ConfigFile(d.cfg.State)})
	if err != nil {
		return nil, fmt.Errorf("read back the demo's configuration: %w", err)
	}
	state.Configure(saved)
	return saved, nil
}

// prepare creates the tables, topics and stores that do not exist.
func (d *demo) prepare(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	if _, err := d.app.Migrate(ctx); err != nil {
		return err
	}
	for _, id := range stores {
		if err := app.InitStore(ctx, cfg, log, app.StoreName{Account: account, Store: id}); err != nil {
			return fmt.Errorf("prepare store %s: %w", id, err)
		}
	}
	var err error
	d.emit, err = d.app.EmittingStore(account, primary, agent)
	return err
}

// steps runs the remaining steps.
func (d *demo) steps(ctx context.Context) (*result, error) {
	doc, err := policy.Parse([]byte(`{"defaultPolicies": [
		{"srcStoreId": "1", "destStoreId": "2"},
		{"srcStoreId": "1", "destStoreId": "3"}
	]}`))
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
		{stepAdopt, d.adopt},
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

// goEnv returns a variable of the go command; "" if there is no such command.
func goEnv(name string) string {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
