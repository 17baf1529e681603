// Package folder publishes the documents of a policy folder, and opens incidents for the documents and records that a
// process does not follow.
//
// A file that has changed is published. At a start, a file that was published before is not, so that a restart reverts
// no policy. Nothing is published over a record that cannot be decoded, until an operator has accepted its loss. A
// refused document leaves the last good one active. Documents that are not active are read again until they are, and
// all if the folder is followed.
package folder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// Config holds the settings of a Folder.
type Config struct {
	// Location is where the folder is, as logs and records name it; empty if there is none. Files are its files.
	Location string
	Files    fs.FS
	// Accounts returns the stores that are in force by account.
	Accounts func() map[string][]policy.Store
	// Interval is the time between two reads of documents that were refused, and between two reports of faults; 0: 10 s.
	Interval time.Duration
	// Follow is the time between two looks for files that have changed; 0: they are read at the start only.
	Follow time.Duration
}

// steadyTime is the time between two reads that must be alike before a changed file counts: it may be being written.
// After steadyReads that differ the next look tries again. The part of a file is often a document with fewer rules, so
// a document that weakens the active one waits until its file has been the same for weakerTime.
const (
	steadyTime  = time.Second
	steadyReads = 10
	weakerTime  = time.Minute
)

// Deps are the dependencies of a Folder. All are required.
type Deps struct {
	// Registry and Board apply the records of the topics policies and incidents.
	Registry  *policy.Registry
	Board     *incident.Board
	Publisher schemas.Publisher
	// Unreadable returns the subjects of the incidents of the records of an account's policy that cannot be decoded.
	Unreadable func(account string) []incident.Subject
	// Lists returns why this process could not read exclusion lists of an account's policy.
	Lists func(account string) error
	Log   *slog.Logger
}

// A Folder publishes the changed documents of the configured folder. A refused document is not published until it is
// corrected. A document that has diverged from the active policy is not published until its file changes.
//
// Its methods that publish require that Registry and Board have applied all records that their topics had at the start.
type Folder struct {
	config Config
	deps   Deps
	// published is closed when the documents that must be published are active, or if there is no folder.
	published chan struct{}

	// Only Run uses the following, which are by account but for unread.

	// active has the digests of the files whose document is active. followed are the accounts whose active file has
	// changed since. waiting are the other valid documents. diverged has the reasons why some are not published.
	active   map[string]string
	followed map[string]bool
	waiting  map[string]candidate
	diverged map[string]string
	unread   string          // the files that could not be read at the last look
	open     map[string]bool // there may be an open incident that this process must close

	mu     sync.Mutex    // guards faults
	faults policy.Faults // of the refused documents
}

// A candidate is a file whose document is not active: its digest, and the revision and the time of its first read.
type candidate struct {
	sum      string
	revision int64
	since    time.Time
}

// New returns a Folder.
func New(c Config, d Deps) *Folder {
	if c.Interval == 0 {
		c.Interval = 10 * time.Second
	}
	p := &Folder{
		config: c, deps: d, published: make(chan struct{}),
		active: map[string]string{}, followed: map[string]bool{}, open: map[string]bool{},
	}
	if c.Location == "" {
		close(p.published)
	}
	return p
}

// Published returns a channel that is closed when the documents that must be published are active; at once if there is
// no folder.
func (p *Folder) Published() <-chan struct{} { return p.published }

// Run reads the folder. While documents are refused, wait or have diverged, or incidents must be closed, it reads the
// folder again periodically, and if it is followed also to look for changes. Otherwise it waits for ctx.
func (p *Folder) Run(ctx context.Context) error {
	f, err := p.steady(ctx)
	if err != nil {
		return err
	}
	for _, name := range f.Ignored {
		p.deps.Log.Warn("ignore file in the policy folder: its account is not in duplication-accounts.json, "+
			"or its name does not end in .json or .yaml", "file", policy.FileOf(p.config.Location, name))
	}
	if err := p.apply(ctx, f); err != nil {
		return err
	}
	close(p.published)
	for {
		pending := len(p.refusals()) > 0 || len(p.waiting) > 0 || len(p.open) > 0
		wait := p.config.Follow
		switch {
		case pending && (wait == 0 || p.config.Interval < wait):
			wait = p.config.Interval
		case wait == 0:
			<-ctx.Done()
			return nil
		}
		if err := retry.Sleep(ctx, wait); err != nil {
			return err
		}
		if err := p.readAgain(ctx); err != nil {
			return err
		}
	}
}

// readAgain reads the folder for the accounts that are not active yet, and if it is followed also for those whose files
// have changed. The former can be others than the refused ones, since a corrected list of accounts may have new ones.
func (p *Folder) readAgain(ctx context.Context) error {
	f, err := p.steady(ctx)
	if err != nil {
		return err
	}
	p.reportUnread(f)
	if len(p.active) > 0 && slices.ContainsFunc(faultsOf(f.Faults, ""), isUnread) {
		return nil // an unreadable folder says nothing about the accounts
	}
	if p.config.Follow > 0 {
		p.forgetChanged(f)
	}
	maps.DeleteFunc(f.Documents, func(account string, _ policy.Document) bool { return p.active[account] != "" })
	f.Faults = slices.DeleteFunc(f.Faults, func(fault policy.Fault) bool { return p.active[fault.Account] != "" })
	if len(faultsOf(f.Faults, "")) > 0 { // of the list of accounts: what is known of each stays
		f.Faults = append(f.Faults, slices.DeleteFunc(slices.Clone(p.refusals()),
			func(fault policy.Fault) bool { return fault.Account == "" })...)
	}
	return p.apply(ctx, f)
}

// isUnread reports whether a fault is of a file that could not be read, or is missing, and not of what it has.
func isUnread(f policy.Fault) bool { return f.Line == 0 }

// reportUnread logs the files that cannot be read, when they are others than before.
func (p *Folder) reportUnread(f policy.Folder) {
	unread := ""
	for _, fault := range f.Faults {
		if isUnread(fault) && (fault.Account == "" || p.active[fault.Account] != "") {
			unread += fault.Origin(p.config.Location) + "\n"
			if !strings.Contains(p.unread, fault.Origin(p.config.Location)+"\n") {
				p.deps.Log.Warn("the policy folder cannot be read: the policies in force stay", "account", fault.Account,
					"file", fault.Origin(p.config.Location), "err", fault.Reason)
			}
		}
	}
	p.unread = unread
}

// forgetChanged makes the accounts whose files have changed inactive, so that they are applied. A file that cannot be
// read has not changed.
func (p *Folder) forgetChanged(f policy.Folder) {
	for account, sum := range p.active {
		faults := faultsOf(f.Faults, account)
		switch {
		case sum == "" || sum == f.Sums[account]:
		case f.Sums[account] != "" || slices.ContainsFunc(faults, func(f policy.Fault) bool { return !isUnread(f) }):
			p.active[account], p.followed[account] = "", true
		case len(faults) == 0 && len(faultsOf(f.Faults, "")) == 0:
			p.deps.Log.Warn("the policy folder has no document of the account any more: its policy stays in force, "+
				"and 'millrace policy remove' removes it", "account", account, "folder", p.config.Location)
			delete(p.active, account)
		}
	}
}

// steady reads the folder until two reads in a row are alike, so that no part of a file that is being written counts.
// Files that change all the time have a fault.
func (p *Folder) steady(ctx context.Context) (policy.Folder, error) {
	f := p.read()
	before := policy.Folder{}
	for range steadyReads {
		if len(f.Faults) == 0 && maps.Equal(f.Sums, p.active) {
			return f, nil
		}
		if err := retry.Sleep(ctx, steadyTime); err != nil {
			return f, err
		}
		before, f = f, p.read()
		if maps.Equal(f.Sums, before.Sums) && slices.EqualFunc(f.Faults, before.Faults, alike) {
			return f, nil
		}
	}
	for account, sum := range f.Sums {
		if before.Sums[account] != sum {
			delete(f.Documents, account)
			delete(f.Sums, account)
			f.Faults = append(f.Faults, policy.Fault{Account: account, Reason: "its document changes all the time"})
		}
	}
	return f, nil
}

// alike reports whether two faults are of one cause. The text of a failed read may have the port of a connection.
func alike(a, b policy.Fault) bool {
	return a == b || isUnread(a) && isUnread(b) && a.Account == b.Account && a.File == b.File
}

func (p *Folder) read() policy.Folder {
	return policy.ReadFolder(p.config.Files, p.config.Accounts())
}

// apply publishes documents, and logs and records the faults and the diverged documents.
func (p *Folder) apply(ctx context.Context, f policy.Folder) error {
	faults := f.Faults
	before := p.refusals()
	for _, account := range slices.Sorted(maps.Keys(accountsOf(faults))) {
		now := faultsOf(faults, account)
		if slices.Equal(now, faultsOf(before, account)) {
			continue // already logged
		}
		p.deps.Log.Error(p.refusal(account), "account", account, "file", now[0].Origin(p.config.Location),
			"err", reasons(now))
	}
	diverged, err := p.publishChanged(ctx, f)
	var lost *policy.LostError
	if errors.As(err, &lost) {
		p.deps.Log.Warn("publish policies again: another writer was first", "err", err)
		return p.readAgain(ctx) // the other may have published a newer file
	}
	if err != nil {
		return err
	}
	for account := range f.Documents {
		if p.active[account] = f.Sums[account]; p.waiting[account] != (candidate{}) {
			p.active[account] = ""
		}
	}
	p.reportDiverged(ctx, f, diverged)
	for account := range accountsOf(before) {
		if len(faultsOf(faults, account)) == 0 {
			p.deps.Log.Info("accept policy", "account", account, "folder", p.config.Location)
		}
	}
	// Last, so that the process is not ready too early.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
	return nil
}

// refusal returns the log message for a refused document; if account is empty, for the folder as a
// whole.
func (p *Folder) refusal(account string) string {
	if account == "" {
		return "refuse policy folder: the active policies stay, and the folder is read again until it is corrected"
	}
	if _, ok := p.deps.Registry.Document(account); ok {
		return "refuse policy: the last good one stays active, and the file is read again until it is corrected"
	}
	return "refuse policy: the account has no active one, and the file is read again until it is corrected"
}

// reasons returns the faults of one file as one line.
func reasons(faults policy.Faults) string {
	all := make([]string, len(faults))
	for i, f := range faults {
		f.File = ""
		all[i] = f.String()
	}
	return strings.Join(all, "; ")
}

// oneLine returns the text of joined errors as one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (p *Folder) refusals() policy.Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// accountsOf returns the accounts of faults; the empty account is the folder as a whole.
func accountsOf(faults policy.Faults) map[string]bool {
	accounts := map[string]bool{}
	for _, f := range faults {
		accounts[f.Account] = true
	}
	return accounts
}

// faultsOf returns the faults of an account.
func faultsOf(faults policy.Faults, account string) (some policy.Faults) {
	for _, f := range faults {
		if f.Account == account {
			some = append(some, f)
		}
	}
	return some
}

// Refused returns the policies that this process does not follow: documents of the folder with a
// fault, and unreadable records of configured accounts. It does not include an active record with
// faults.
func (p *Folder) Refused() (all []string) {
	faults := p.refusals()
	for _, account := range slices.Sorted(maps.Keys(accountsOf(faults))) {
		first := faultsOf(faults, account)[0]
		fault := policy.Fault{Key: first.Key, Reason: first.Reason}
		all = append(all, fmt.Sprintf("%s: %s", first.Origin(p.config.Location), fault))
	}
	for _, account := range slices.Sorted(maps.Keys(p.config.Accounts())) {
		f := p.recordFaults(account)
		f.Stores = nil
		if err := f.Err(); err != nil {
			all = append(all, fmt.Sprintf("account %s: %s", account, oneLine(err)))
		}
	}
	return all
}

// Metric returns the metric of refused policies.
func (p *Folder) Metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_policy_refused",
		Help: "Policies that this process does not follow; /readyz and the log name them.",
	}, func() float64 { return float64(len(p.Refused())) })
}
