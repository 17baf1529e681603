package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// policyAgain is the time between two readings of documents that were refused.
const policyRetryInterval = 10 * time.Second

// CheckPolicies reads the policies of a folder and returns them, with their faults in the form of the configuration's.
// Without accounts only the form of the documents is checked, and not whether cfg has their accounts and stores.
func CheckPolicies(cfg *config.Config, accounts bool, folder string) (policy.Folder, config.Faults) {
	var stores map[string][]policy.Store
	if accounts {
		stores = policyStores(cfg)
	}
	f := policy.ReadFolder(os.DirFS(folder), stores)
	var faults config.Faults
	for _, fault := range f.Faults {
		faults = append(faults, config.Fault{Key: fault.Key, Reason: fault.Reason, Origin: originOf(folder, fault)})
	}
	return f, faults
}

// originOf returns FILE:LINE of a fault.
func originOf(folder string, f policy.Fault) string {
	origin := filepath.Join(folder, f.File)
	if f.Line > 0 {
		origin += ":" + strconv.Itoa(f.Line)
	}
	return origin
}

// policyStores returns what policies depend on of the stores of each account.
func policyStores(cfg *config.Config) map[string][]policy.Store {
	accounts := map[string][]policy.Store{}
	for _, a := range cfg.Accounts {
		stores := []policy.Store{}
		for _, s := range a.Stores {
			stores = append(stores, policy.Store{ID: s.ID, ReadOnly: s.Layout == "plain", Space: s.Space})
		}
		accounts[a.ID] = stores
	}
	return accounts
}

// A policyFolder publishes the documents of the configured folder whose files have changed. One that is refused is left
// out until it is mended; one that has diverged from what is in force, until its file changes.
type policyFolder struct {
	app      *App
	interval time.Duration
	// published is closed when the documents that are to be published are in force, or there is no folder.
	published chan struct{}
	// taken are the accounts whose documents have been read, without a fault, and are in force: they are not read again.
	// diverged says of each of the other documents without a fault why it is not published. Only run uses both.
	active   map[string]bool
	diverged map[string]string
	// open are the accounts of which an incident may be open that this process closes when it is over. Only run uses it.
	open map[string]bool
	// first are the digests of the files that were first read of documents that only older programs have published. Those
	// recorded no digest, so a file has changed if its digest is not the first one. Only run uses it.
	firstDigests map[string]string

	mu     sync.Mutex    // guards faults
	faults policy.Faults // of the documents that are refused
}

func newPolicyFolder(a *App) *policyFolder {
	return &policyFolder{app: a, interval: policyRetryInterval, published: make(chan struct{}), active: map[string]bool{}, open: map[string]bool{},
		firstDigests: map[string]string{}}
}

// run reads the folder once, then again and again while anything is refused or has diverged, or an incident is to be
// closed, and then waits for ctx.
func (p *policyFolder) run(ctx context.Context) error {
	if err := ready(ctx, p.app.policies, p.app.incidents); err != nil {
		return err
	}
	f := p.read()
	for _, name := range f.Unread {
		p.app.log.Warn("ignore file in the policy folder: its account is not in duplication-accounts.json, or its name does not "+
			"end in .json or .yaml", "file", filepath.Join(p.app.cfg.Policies.Folder, name))
	}
	if err := p.publish(ctx, f); err != nil {
		return err
	}
	close(p.published)
	for len(p.refusals()) > 0 || len(p.diverged) > 0 || len(p.open) > 0 {
		if err := retry.Sleep(ctx, p.interval); err != nil {
			return err
		}
		if err := p.readAgain(ctx); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// readAgain reads the folder for the accounts that are not taken yet. Those are not only the ones that are refused: a
// mended list of accounts names others.
func (p *policyFolder) readAgain(ctx context.Context) error {
	f := p.read()
	if len(p.active) > 0 && len(faultsOf(f.Faults, "")) > 0 { // the folder as a whole says nothing of those that wait
		return nil
	}
	maps.DeleteFunc(f.Documents, func(account string, _ policy.Document) bool { return p.active[account] })
	f.Faults = slices.DeleteFunc(f.Faults, func(fault policy.Fault) bool { return p.active[fault.Account] })
	return p.publish(ctx, f)
}

func (p *policyFolder) read() policy.Folder {
	return policy.ReadFolder(os.DirFS(p.app.cfg.Policies.Folder), policyStores(p.app.cfg))
}

// publish publishes documents, and logs and records faults and what has diverged.
func (p *policyFolder) publish(ctx context.Context, f policy.Folder) error {
	folder, faults := p.app.cfg.Policies.Folder, f.Faults
	before := p.refusals()
	for _, account := range slices.Sorted(maps.Keys(accountsOf(faults))) {
		now := faultsOf(faults, account)
		if slices.Equal(now, faultsOf(before, account)) {
			continue // it has been logged
		}
		p.app.log.Error(p.refusal(account), "account", account, "file", originOf(folder, now[0]), "err", reasons(now))
	}
	diverged, err := p.publishOnTop(ctx, f)
	if err != nil {
		return err
	}
	for account := range f.Documents {
		p.active[account] = diverged[account] == ""
	}
	p.reportDiverged(ctx, f, diverged)
	for account := range accountsOf(before) {
		if len(faultsOf(faults, account)) == 0 {
			p.app.log.Info("policy is no longer refused", "account", account, "folder", folder)
		}
	}
	// Last: readiness says that all is well when it is.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
	return nil
}

// A folderStep is what is done about the document of a policy folder.
type folderStep int

const (
	folderPublish folderStep = iota
	folderNothing
	folderDiverged // not published, and reported
)

// stepOf decides about a document of the folder. published: its file has been published before. same: it is what is in
// force. gap: a record after the newest revision cannot be decoded, and no person has accepted that.
func folderStepOf(published, same, gap bool) folderStep {
	switch {
	case gap:
		return folderDiverged
	case !published:
		return folderPublish
	case same:
		return folderNothing
	}
	return folderDiverged
}

// publishOnTop publishes the documents whose files have changed, on top of what others publish meanwhile. It returns why
// others that are not in force are not published, by account.
func (p *policyFolder) publishOnTop(ctx context.Context, f policy.Folder) (diverged map[string]string, err error) {
	for {
		changed := map[string]policy.Document{}
		diverged = map[string]string{}
		for account, doc := range f.Documents {
			gap := p.app.hasOpenGap(account)
			made, older := p.publishedBefore(account, f.Sums[account], doc)
			switch folderStepOf(made || older, p.app.isActive(account, doc, p.app.recordFaults(account)), gap) {
			case folderPublish:
				changed[account] = doc
			case folderDiverged:
				diverged[account] = p.whyDiverged(account, f.Sums[account], gap, older)
			}
		}
		err = p.app.publishPolicies(ctx, changed, f.Sums, filepath.Base(p.app.cfg.Policies.Folder))
		var lost *policy.LostError
		if !errors.As(err, &lost) {
			return diverged, err
		}
		p.app.log.Warn("publish policies again: another writer was first", "err", err)
	}
}

// publishedBefore reports whether the file of a document was published, or as far as can be known: an older program has
// published the document, and the file has not changed since this process read it first.
func (p *policyFolder) publishedBefore(account, sum string, doc policy.Document) (made, older bool) {
	if made, older = p.app.policyRegistry.Published(account, sum, doc); !older {
		return made, false
	}
	if p.firstDigests[account] == "" {
		p.firstDigests[account] = sum
	}
	return false, p.firstDigests[account] == sum
}

// whyDiverged says why a document of the folder is not published though it is not in force.
func (p *policyFolder) whyDiverged(account, sum string, gap, older bool) string {
	revision := p.app.policyRegistry.Revision(account)
	switch {
	case older && !gap:
		return fmt.Sprintf("revision %d is in force, and the document of the folder, which an older program has published, is another "+
			"one (sha256 %s): update the file, or change it in any way while this process runs to publish it", revision, sum)
	case gap:
		return fmt.Sprintf("a record after revision %d cannot be decoded: the document of the folder is not published before a person "+
			"has closed the incident %s of that record", revision, incident.RecordUnreadable)
	}
	return fmt.Sprintf("revision %d is in force, and the document of the folder, which was published before, is another one (sha256 %s): "+
		"update the file, or change it in any way to publish it", revision, sum)
}

// reportDiverged opens the incidents of what has diverged, and closes those of what has not. One that cannot be published
// is published when the folder is read again, or by the next process. Of processes with different folders each adds to
// the incident only when its own reason changes.
func (p *policyFolder) reportDiverged(ctx context.Context, f policy.Folder, diverged map[string]string) {
	report := func(account string, err error) bool {
		if err != nil && ctx.Err() == nil {
			p.app.log.Warn("report a diverged policy", "account", account, "err", err)
		}
		return err == nil
	}
	about := func(account string) incident.Subject {
		return incident.Subject{Account: account, Kind: incident.PolicyDiverged}
	}
	for account, why := range diverged {
		changed := p.diverged[account] != why
		if changed {
			p.app.log.Error("a policy of the folder is not published", "account", account, "reason", why)
		}
		if changed || !p.app.incidentBoard.IsOpen(about(account)) {
			report(account, p.app.incidentBoard.Open(ctx, about(account), why))
		}
	}
	for account := range f.Documents {
		p.open[account] = true // by this process or by an earlier one
	}
	unknown := accountsOf(f.Faults)
	for account := range p.open {
		over := "the folder has no document of the account"
		switch {
		case diverged[account] != "":
			continue
		case p.active[account]:
			over = "the document of the folder is in force"
		case unknown[""], unknown[account]:
			continue
		}
		if report(account, p.app.incidentBoard.Close(ctx, about(account), over)) {
			delete(p.open, account)
		}
	}
	p.diverged = diverged
}

// refusal is the log message about a refused document, or about the folder as a whole if account is empty.
func (p *policyFolder) refusal(account string) string {
	if account == "" {
		return "refuse policy folder: all policies that are in force stay, and it is read again until it is mended"
	}
	if _, ok := p.app.policyRegistry.Document(account); ok {
		return "refuse policy: the last good one stays in force, and the file is read again until it is mended"
	}
	return "refuse policy: its account has none in force, and the file is read again until it is mended"
}

// reasons returns faults of one file as one line.
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

func (p *policyFolder) refusals() policy.Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// accountsOf returns the accounts that faults are of; the empty one is the folder as a whole.
func accountsOf(faults policy.Faults) map[string]bool {
	accounts := map[string]bool{}
	for _, f := range faults {
		accounts[f.Account] = true
	}
	return accounts
}

// of returns the faults of an account.
func faultsOf(faults policy.Faults, account string) (some policy.Faults) {
	for _, f := range faults {
		if f.Account == account {
			some = append(some, f)
		}
	}
	return some
}

// refused names the policies that this process does not follow: documents of the folder with a fault, and records for
// accounts of this configuration that cannot be read. A record that is in force with faults is none of them.
func (p *policyFolder) refused() (all []string) {
	faults := p.refusals()
	for _, account := range slices.Sorted(maps.Keys(accountsOf(faults))) {
		first := faultsOf(faults, account)[0]
		origin := originOf(p.app.cfg.Policies.Folder, first)
		all = append(all, fmt.Sprintf("%s: %s", origin, policy.Fault{Key: first.Key, Reason: first.Reason}))
	}
	for _, a := range p.app.cfg.Accounts {
		f := p.app.recordFaults(a.ID)
		f.Stores = nil
		if err := f.Err(); err != nil {
			all = append(all, fmt.Sprintf("account %s: %s", a.ID, oneLine(err)))
		}
	}
	return all
}

// metric counts the policies that are refused.
func (p *policyFolder) metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_policy_refused",
		Help: "Policies that this process does not follow; /readyz and the log name them.",
	}, func() float64 { return float64(len(p.refused())) })
}

// openGap reports whether a record after the newest revision of an account cannot be decoded, and no person has accepted
// that.
func (a *App) hasOpenGap(account string) bool {
	if a.policyRegistry.Faults(account).Gap == nil {
		return false
	}
	accepted := false
	for _, u := range a.unreadable.List() {
		if u.Topic == schemas.Policies && string(u.Key) == account {
			if !a.incidentBoard.Accepted(recordSubject(u)) {
				return true
			}
			accepted = true
		}
	}
	return !accepted
}

// recordFaults returns what is wrong with the newest records of an account's policy, but for what a person has accepted.
func (a *App) recordFaults(account string) policy.RecordFaults {
	f := a.policyRegistry.Faults(account)
	if f.Gap != nil && !a.hasOpenGap(account) {
		f.Gap = nil
	}
	return f
}

// SetPolicy publishes a document for an account, if it differs from the one in force,
// and returns when this process follows it. A *policy.LostError reports that another writer's
// document was published first: then that one is in force, and not doc. It needs a Run that is
// under way.
func (a *App) SetPolicy(ctx context.Context, account string, doc policy.Document, by string) error {
	if err := ready(ctx, a.policies); err != nil {
		return err
	}
	if err := doc.Validate(a.stores.IDs(account)); err != nil {
		return fmt.Errorf("policy of account %q: %w", account, err)
	}
	return a.publishPolicies(ctx, map[string]policy.Document{account: doc}, nil, by)
}

// inForce reports whether what is in force for an account, with faults f, is what doc says.
func (a *App) isActive(account string, doc policy.Document, f policy.RecordFaults) bool {
	held, ok := a.policyRegistry.Document(account)
	return ok && f.Unread == nil && f.Gap == nil && reflect.DeepEqual(held, doc)
}

// publishPolicies publishes the documents that differ from those in force or, if they are of a folder's files, whose
// digests are sums, have not been published before. It returns when this process has read which records took their
// revisions. Its error joins a *policy.LostError for each document before which another writer published another one.
func (a *App) publishPolicies(ctx context.Context, documents map[string]policy.Document, sums map[string]string, by string) error {
	done := func(account string) bool {
		doc, sum := documents[account], sums[account]
		made, older := a.policyRegistry.Published(account, sum, doc)
		// A record ends a gap that a person has accepted, too.
		return a.isActive(account, doc, a.policyRegistry.Faults(account)) && (sum == "" || made || older)
	}
	var records []*pb.Policy
	var msgs []schemas.Message
	for account, doc := range documents {
		base := a.policyRegistry.Revision(account) // first: what comes after it is not overwritten unseen
		if done(account) {
			continue
		}
		rec, err := policy.Record(account, base, doc, by, time.Now().UTC())
		if err != nil {
			return fmt.Errorf("encode the policy of %s: %w", account, err)
		}
		rec.FileSha256 = sums[account]
		records, msgs = append(records, rec), append(msgs, schemas.Message{Topic: schemas.Policies, Body: rec})
	}
	if err := a.producer.Publish(ctx, msgs...); err != nil {
		return fmt.Errorf("publish policies: %w", err)
	}
	var lost []error
	for _, rec := range records {
		for {
			settled, err := a.policyRegistry.Settled(rec)
			if settled {
				if err != nil && !done(rec.GetAccount()) {
					lost = append(lost, err)
				}
				break
			}
			if err := retry.Sleep(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return errors.Join(lost...)
}
