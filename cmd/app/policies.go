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

// policyRetryInterval is the time between two reads of documents that were refused.
const policyRetryInterval = 10 * time.Second

// CheckPolicies reads the policies of a folder, and returns them and their faults in the form of
// configuration faults. If accounts is false, it does not check whether cfg has the accounts and
// stores of the documents.
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

// originOf returns the origin of a fault, FILE:LINE.
func originOf(folder string, f policy.Fault) string {
	origin := filepath.Join(folder, f.File)
	if f.Line > 0 {
		origin += ":" + strconv.Itoa(f.Line)
	}
	return origin
}

// policyStores returns the stores of each account, with the settings on which policies depend.
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

// A policyFolder publishes the changed documents of the configured folder. A refused document is
// not published until it is corrected. A document that has diverged from the active policy is not
// published until its file changes.
type policyFolder struct {
	app      *App
	interval time.Duration
	// published is closed when the documents that must be published are active, or if there is no
	// folder.
	published chan struct{}
	// active are the accounts with an active document that was read without a fault; they are not read
	// again. diverged has the reasons why other valid documents are not published. Only run uses both.
	active   map[string]bool
	diverged map[string]string
	// open are the accounts that may have an open incident which this process must close. Only run
	// uses it.
	open map[string]bool
	// firstDigests are the digests of files at the first read, for documents that only older versions
	// of this program have published. Those recorded no digest, so such a file counts as changed when
	// its digest differs from the first one. Only run uses it.
	firstDigests map[string]string

	mu     sync.Mutex    // guards faults
	faults policy.Faults // of the refused documents
}

func newPolicyFolder(a *App) *policyFolder {
	return &policyFolder{
		app: a, interval: policyRetryInterval, published: make(chan struct{}),
		active: map[string]bool{}, open: map[string]bool{}, firstDigests: map[string]string{},
	}
}

// run reads the folder. While documents are refused or have diverged, or incidents must be closed,
// it reads the folder again periodically. Then it waits for ctx.
func (p *policyFolder) run(ctx context.Context) error {
	if err := ready(ctx, p.app.policies, p.app.incidents); err != nil {
		return err
	}
	f := p.read()
	for _, name := range f.Ignored {
		p.app.log.Warn("ignore file in the policy folder: its account is not in duplication-accounts.json, "+
			"or its name does not end in .json or .yaml", "file", filepath.Join(p.app.cfg.Policies.Folder, name))
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

// readAgain reads the folder for the accounts that are not active yet. These can be others than the
// refused ones, since a corrected list of accounts may have new ones.
func (p *policyFolder) readAgain(ctx context.Context) error {
	f := p.read()
	if len(p.active) > 0 && len(faultsOf(f.Faults, "")) > 0 {
		return nil // an unreadable folder says nothing about the pending accounts
	}
	maps.DeleteFunc(f.Documents, func(account string, _ policy.Document) bool { return p.active[account] })
	f.Faults = slices.DeleteFunc(f.Faults, func(fault policy.Fault) bool { return p.active[fault.Account] })
	return p.publish(ctx, f)
}

func (p *policyFolder) read() policy.Folder {
	return policy.ReadFolder(os.DirFS(p.app.cfg.Policies.Folder), policyStores(p.app.cfg))
}

// publish publishes documents, and logs and records the faults and the diverged documents.
func (p *policyFolder) publish(ctx context.Context, f policy.Folder) error {
	folder, faults := p.app.cfg.Policies.Folder, f.Faults
	before := p.refusals()
	for _, account := range slices.Sorted(maps.Keys(accountsOf(faults))) {
		now := faultsOf(faults, account)
		if slices.Equal(now, faultsOf(before, account)) {
			continue // already logged
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
			p.app.log.Info("accept policy", "account", account, "folder", folder)
		}
	}
	// Last, so that the process is not ready too early.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
	return nil
}

// A folderStep is the action for a document of a policy folder.
type folderStep int

const (
	folderPublish folderStep = iota
	folderNothing
	folderDiverged // report, do not publish
)

// folderStepOf returns the action for a document of the folder. published: its file was published
// before. same: it equals the active policy. gap: a record after the newest revision cannot be
// decoded, and no person has accepted that.
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

// publishOnTop publishes the documents with changed files, and retries when another writer
// publishes first. It returns, by account, the reasons why other documents that are not active are
// not published.
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

// publishedBefore reports whether the file of a document was published. older: an older version of
// this program published the document, and the file has not changed since this process first read
// it.
func (p *policyFolder) publishedBefore(account, sum string, doc policy.Document) (made, older bool) {
	if made, older = p.app.policyRegistry.Published(account, sum, doc); !older {
		return made, false
	}
	if p.firstDigests[account] == "" {
		p.firstDigests[account] = sum
	}
	return false, p.firstDigests[account] == sum
}

// whyDiverged returns the reason why a document that is not active is not published.
func (p *policyFolder) whyDiverged(account, sum string, gap, older bool) string {
	revision := p.app.policyRegistry.Revision(account)
	switch {
	case older && !gap:
		return fmt.Sprintf("revision %d is active and differs from the document of the folder (sha256 %s), "+
			"which an older version published: update the file, or change it in any way while this process runs to publish it",
			revision, sum)
	case gap:
		return fmt.Sprintf("a record after revision %d cannot be decoded: "+
			"the document of the folder is not published until a person closes the incident %s of that record",
			revision, incident.RecordUnreadable)
	}
	return fmt.Sprintf("revision %d is active and differs from the document of the folder (sha256 %s), "+
		"which was published before: update the file, or change it in any way to publish it", revision, sum)
}

// reportDiverged opens the incidents of diverged documents and closes those of the others. If
// publishing an incident fails, the next read of the folder, or the next process, repeats it.
// Processes with different folders append to an incident only when their own reasons change.
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
			p.app.log.Error("do not publish diverged policy", "account", account, "reason", why)
		}
		if changed || !p.app.incidentBoard.IsOpen(about(account)) {
			report(account, p.app.incidentBoard.Open(ctx, about(account), why))
		}
	}
	for account := range f.Documents {
		p.open[account] = true // an earlier process may have opened it
	}
	unknown := accountsOf(f.Faults)
	for account := range p.open {
		over := "the folder has no document of the account"
		switch {
		case diverged[account] != "":
			continue
		case p.active[account]:
			over = "the document of the folder is active"
		case unknown[""], unknown[account]:
			continue
		}
		if report(account, p.app.incidentBoard.Close(ctx, about(account), over)) {
			delete(p.open, account)
		}
	}
	p.diverged = diverged
}

// refusal returns the log message for a refused document; if account is empty, for the folder as a
// whole.
func (p *policyFolder) refusal(account string) string {
	if account == "" {
		return "refuse policy folder: the active policies stay, and the folder is read again until it is corrected"
	}
	if _, ok := p.app.policyRegistry.Document(account); ok {
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

func (p *policyFolder) refusals() policy.Faults {
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

// refused returns the policies that this process does not follow: documents of the folder with a
// fault, and unreadable records of configured accounts. It does not include an active record with
// faults.
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

// metric returns the metric of refused policies.
func (p *policyFolder) metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_policy_refused",
		Help: "Policies that this process does not follow; /readyz and the log name them.",
	}, func() float64 { return float64(len(p.refused())) })
}

// hasOpenGap reports whether a record after the newest revision of an account cannot be decoded,
// and no person has accepted that.
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

// recordFaults returns the faults of the newest records of an account's policy, without those that
// a person has accepted.
func (a *App) recordFaults(account string) policy.RecordFaults {
	f := a.policyRegistry.Faults(account)
	if f.Gap != nil && !a.hasOpenGap(account) {
		f.Gap = nil
	}
	return f
}

// SetPolicy publishes a document for an account if it differs from the active one, and returns when
// this process follows it. A *policy.LostError reports that another writer's document was published
// first and is active. SetPolicy requires a running Run.
func (a *App) SetPolicy(ctx context.Context, account string, doc policy.Document, by string) error {
	if err := ready(ctx, a.policies); err != nil {
		return err
	}
	if err := doc.Validate(a.stores.IDs(account)); err != nil {
		return fmt.Errorf("policy of account %q: %w", account, err)
	}
	return a.publishPolicies(ctx, map[string]policy.Document{account: doc}, nil, by)
}

// isActive reports whether the active policy of an account equals doc. f are the faults of the
// policy.
func (a *App) isActive(account string, doc policy.Document, f policy.RecordFaults) bool {
	held, ok := a.policyRegistry.Document(account)
	return ok && f.Unread == nil && f.Gap == nil && reflect.DeepEqual(held, doc)
}

// publishPolicies publishes the documents that differ from the active ones. sums are the digests of
// the documents' files, if they have any: such a document is also published if its file was not
// published before. It returns when this process has read which record became each revision. The
// error joins a *policy.LostError for each document that lost against another writer.
func (a *App) publishPolicies(
	ctx context.Context, documents map[string]policy.Document, sums map[string]string, by string,
) error {
	done := func(account string) bool {
		doc, sum := documents[account], sums[account]
		made, older := a.policyRegistry.Published(account, sum, doc)
		// A new record also ends a gap that a person has accepted.
		return a.isActive(account, doc, a.policyRegistry.Faults(account)) && (sum == "" || made || older)
	}
	var records []*pb.Policy
	var msgs []schemas.Message
	for account, doc := range documents {
		base := a.policyRegistry.Revision(account) // read first, so that a later revision is not overwritten
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
