package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
)

const (
	situationItems = 12 // of a space. The share of the brake counts from the tenth on
	situationHeld  = 3  // deletes or rewrites that wait for approval if all of a space is lost
)

// A situation is an account whose space photos is copied from store 1, which is watched, to the stores 2 and 3, with
// the commands of one part of docs/situations.md about it.
type situation struct {
	t       *testing.T
	app     *app.App
	account string
	dir     string // has a directory for each store
	blocks  []string
	values  map[string]string // of words in commands
}

// TestSituations runs the commands of docs/situations.md, each part in an account of its own.
func TestSituations(t *testing.T) {
	need.Full(t)
	parts := map[string]struct {
		title string
		run   func(*situation)
	}{
		"encrypted": {"Files were encrypted", (*situation).encrypted},
		"renamed":   {"A folder was renamed", (*situation).renamed},
		"lost":      {"A disk or a store is lost for good", (*situation).lost},
		"away":      {"A store was away for some days", (*situation).away},
		"rolled":    {"A store was rolled back", (*situation).rolledBack},
	}
	page, err := os.ReadFile("../docs/situations.md")
	must(t, err)
	text := map[string]string{}
	for _, part := range strings.Split(string(page), "\n## ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		text[title] = rest
	}
	if len(text) != len(parts) {
		t.Errorf("the page has %d parts, and the test %d", len(text), len(parts))
	}
	dir := t.TempDir()
	p := newSetup(t, func(c *config.Config) {
		c.Accounts, c.Policies.Folder, c.Reconcile.Settle = nil, "", 3*time.Second
		for account := range parts {
			a := config.Account{ID: account}
			for _, id := range []string{"1", "2", "3"} {
				root := filepath.Join(dir, account, id)
				must(t, os.MkdirAll(root, 0o755))
				a.Stores = append(a.Stores, config.Store{ID: id, Driver: "file", Root: root, Primary: id == "1",
					Watch: id == "1"})
			}
			c.Accounts = append(c.Accounts, a)
		}
	})
	p.want(t, 0, "applied", "migrate")
	list, err := json.Marshal(slices.Collect(maps.Keys(parts)))
	must(t, err)
	p.write(t, "policies/duplication-accounts.json", string(list))
	for account := range parts {
		for _, id := range []string{"1", "2", "3"} {
			p.want(t, 0, "has its marker", "store", "init", account+"/"+id)
		}
		p.write(t, "policies/"+account+"-duplication-policy.yaml", "defaults: {copy: [{from: 1, to: [2, 3]}]}")
	}
	p.want(t, 0, "", "policy", "import", filepath.Join(filepath.Dir(p.file), "policies"))
	a, err := app.Open(t.Context(), p.cfg, app.Options{Log: slog.New(slog.DiscardHandler), Drain: time.Second})
	must(t, err)
	defer a.Close()
	p.serve(t, "all")
	var running sync.WaitGroup
	for account, part := range parts {
		running.Go(func() { // t.Parallel excludes t.Setenv
			t.Run(account, func(t *testing.T) {
				s := &situation{t: t, app: a, account: account, dir: filepath.Join(dir, account),
					values: map[string]string{"FILE": p.file, "TEXT": "documented"}}
				for _, block := range documentedCommands.FindAllStringSubmatch(text[part.title], -1) {
					s.blocks = append(s.blocks, block[1])
				}
				all := items("old", situationItems)
				for item, text := range all {
					s.write("1", item, text)
				}
				s.have(all, "2", "3")
				part.run(s)
				s.keys(0)
				if len(s.blocks) > 0 {
					t.Errorf("the test does not run %q", s.blocks)
				}
			})
		})
	}
	running.Wait()
}

var (
	documentedCommands = regexp.MustCompile("(?ms)^```sh test=integration.TestSituations\n(.*?)^```$")
	documentedWord     = regexp.MustCompile(`FILE|TEXT|TIME|[a-z0-9-]+\.yaml|\bacme\b`)
	documentedCode     = regexp.MustCompile(`# exit code (\d)`)
)

// commands runs the next block of the part. KEY is every incident that waits for a decision: keys of them, once there
// are as many.
func (s *situation) commands(keys int) {
	s.t.Helper()
	block := s.blocks[0]
	s.blocks = s.blocks[1:]
	for line := range strings.Lines(block) {
		var args []string
		command, comment, _ := strings.Cut(strings.TrimSpace(line), " # ")
		for _, word := range strings.Fields(strings.TrimPrefix(command, "millrace ")) {
			if word == "KEY" {
				args = append(args, s.keys(keys)...)
				continue
			}
			args = append(args, documentedWord.ReplaceAllStringFunc(word, func(w string) string {
				switch {
				case w == "acme":
					return s.account
				case strings.HasSuffix(w, ".yaml"):
					return filepath.Join(s.dir, w)
				}
				return s.values[w]
			}))
		}
		if args[1] == "show" && args[0] == "incident" { // takes one
			args = args[:len(args)-keys+1]
		}
		code := 0
		if found := documentedCode.FindStringSubmatch("# " + comment); found != nil {
			code = int(found[1][0] - '0')
		}
		begun := time.Now()
		out, err := exec.CommandContext(s.t.Context(), binaries(s.t), args...).CombinedOutput()
		var exit *exec.ExitError
		got := 0
		if errors.As(err, &exit) {
			got, err = exit.ExitCode(), nil
		}
		if err != nil || got != code {
			s.t.Fatalf("millrace %s: %v, exit code %d, want %d:\n%s", strings.Join(args, " "), err, got, code, out)
		}
		s.t.Logf("%s %s", time.Since(begun).Round(time.Millisecond), strings.Join(args, " "))
	}
}

// keys waits until n incidents of the account are open, and returns their keys.
func (s *situation) keys(n int) (keys []string) {
	s.t.Helper()
	harness.Eventually(s.t, 3*time.Minute, fmt.Sprintf("have %d open incidents", n), func(ctx context.Context) error {
		open, err := read.OpenIncidents(ctx, s.app.DB(), s.account)
		keys = nil
		for _, i := range open {
			keys = append(keys, schemas.IncidentKey(i))
		}
		if err == nil && len(keys) != n {
			err = fmt.Errorf("%d are open: %q", len(keys), keys)
		}
		return err
	})
	return keys
}

// items returns n items of a folder with their contents.
func items(folder string, n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprintf("%s/%d", folder, i)] = fmt.Sprint("plain ", i)
	}
	return all
}

// have waits until each of the stores has these items in space photos, and no others.
func (s *situation) have(want map[string]string, stores ...string) {
	s.t.Helper()
	harness.Eventually(s.t, 3*time.Minute, "have the items", func(context.Context) (err error) {
		for _, store := range stores {
			photos := filepath.Join(s.dir, store, "photos")
			names, _ := filepath.Glob(filepath.Join(photos, "*", "*")) // the pattern is right
			got := map[string]string{}
			for _, name := range names {
				text, e := os.ReadFile(name)
				err = errors.Join(err, e)
				got[strings.TrimPrefix(name, photos+"/")] = string(text)
			}
			if !maps.Equal(got, want) {
				err = errors.Join(err, fmt.Errorf("store %s has %v, want %v", store, got, want))
			}
		}
		return err
	})
}

// now returns a time that is after what has been written, and before what follows.
func (s *situation) now() string {
	now := time.Now().UTC().Truncate(time.Second).Add(time.Second)
	<-time.After(time.Until(now.Add(time.Second)))
	return now.Format(time.RFC3339)
}

func (s *situation) encrypted() {
	s.values["TIME"] = s.now()
	for item := range items("old", situationItems) {
		s.write("1", item, "encrypted "+item)
	}
	lists(s.t, s.app, s.account, "photos", 2, situationHeld)
	s.commands(2)
	s.have(items("old", situationItems), "1", "2", "3")
	s.commands(0)
}

func (s *situation) renamed() {
	photos, all := filepath.Join(s.dir, "1", "photos"), items("new", situationItems)
	must(s.t, os.Mkdir(filepath.Join(photos, "new"), 0o755))
	for item := range all {
		must(s.t, os.Rename(filepath.Join(photos, "old", filepath.Base(item)), filepath.Join(photos, item)))
	}
	lists(s.t, s.app, s.account, "photos", 2, situationHeld)
	s.commands(2)
	// On a slow machine more is held than the brake asks for, and what comes after the decision is on the next list.
	harness.Eventually(s.t, 2*time.Minute, "decide about all lists", func(ctx context.Context) error {
		open, err := read.OpenIncidents(ctx, s.app.DB(), s.account)
		for _, i := range open {
			if app.HasList(i.GetKind()) {
				_, _, refused := s.app.DecideList(ctx, i, app.Actor{Who: "ann", Reason: "documented"}, held.ActionApprove)
				err = errors.Join(err, fmt.Errorf("list %s is open: %v", i.GetSubject(), refused))
			}
		}
		return err
	})
	s.have(all, "1", "2", "3")
}

func (s *situation) lost() {
	s.values["TIME"] = s.now()
	s.move("3", "lost-3")
	must(s.t, os.Mkdir(filepath.Join(s.dir, "4"), 0o755))
	for name, ids := range map[string][]string{"with-4.yaml": {"1", "2", "3", "4"}, "without-3.yaml": {"1", "2", "4"}} {
		text := "id: " + s.account + "\nstores:\n"
		for _, id := range ids {
			text += fmt.Sprintf("  - {id: %q, root: %s, primary: %t, watch: %[3]t}\n", id, filepath.Join(s.dir, id), id == "1")
		}
		must(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644))
	}
	policy := "defaults: {copy: [{from: 1, to: [2, 4]}]}"
	must(s.t, os.WriteFile(filepath.Join(s.dir, "policy.yaml"), []byte("account: "+s.account+"\n"+policy), 0o644))
	all := items("old", situationItems)
	s.commands(0)
	s.have(all, "1", "2", "4")
	s.values["TIME"] = s.now()
	s.move("1", "lost-1")
	must(s.t, os.Mkdir(filepath.Join(s.dir, "1"), 0o755))
	s.commands(0)
	s.have(all, "1", "2", "4")
}

func (s *situation) away() {
	s.move("2", "away")
	now := s.change()
	s.have(now, "1", "3")
	s.move("away", "2")
	s.have(now, "2")
	s.commands(0)
}

func (s *situation) rolledBack() {
	for _, store := range []string{"1", "2"} {
		out, err := exec.CommandContext(s.t.Context(), "cp", "-a", filepath.Join(s.dir, store),
			filepath.Join(s.dir, "snapshot-"+store)).CombinedOutput()
		if err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
	}
	now := s.change()
	s.have(now, "1", "2", "3")
	s.values["TIME"] = s.now()
	s.move("2", "later-2")
	s.move("snapshot-2", "2")
	s.commands(2)
	s.have(now, "1", "2", "3")
	s.move("1", "later-1")
	s.move("snapshot-1", "1")
	s.commands(1)
	s.have(now, "1", "2", "3")
}

// change replaces, adds and deletes an item in store 1, and returns the items that it has then.
func (s *situation) change() map[string]string {
	s.t.Helper()
	now := items("old", situationItems)
	now["old/0"], now["old/added"] = "plain, but new", "plain"
	for _, item := range []string{"old/0", "old/added"} {
		s.write("1", item, now[item])
	}
	delete(now, "old/1")
	must(s.t, os.Remove(filepath.Join(s.dir, "1", "photos", "old/1")))
	return now
}

func (s *situation) move(from, to string) {
	s.t.Helper()
	must(s.t, os.Rename(filepath.Join(s.dir, from), filepath.Join(s.dir, to)))
}

func (s *situation) write(store, item, text string) {
	s.t.Helper()
	name := filepath.Join(s.dir, store, "photos", item)
	must(s.t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)))
}
