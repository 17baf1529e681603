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
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// policyAgain is the time between two readings of documents that were refused.
const policyAgain = 10 * time.Second

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

// A policyFolder publishes the documents of the configured folder. One that is refused is left out until it is mended;
// the others are published.
type policyFolder struct {
	app   *App
	again time.Duration
	// published is closed when the documents that are not refused are in force, or there is no folder.
	published chan struct{}
	// taken are the accounts whose documents have been read without a fault: they are not read again. Only
	// run uses it.
	taken map[string]bool

	mu     sync.Mutex    // guards faults
	faults policy.Faults // of the documents that are refused
}

func newPolicyFolder(a *App) *policyFolder {
	return &policyFolder{app: a, again: policyAgain, published: make(chan struct{}), taken: map[string]bool{}}
}

// run reads the folder once, then again and again while anything is refused, and then waits for ctx.
func (p *policyFolder) run(ctx context.Context) error {
	if err := ready(ctx, p.app.policies); err != nil {
		return err
	}
	f := p.read()
	for _, name := range f.Unread {
		p.app.log.Warn("ignore file in the policy folder: its account is not in duplication-accounts.json, or its name does not "+
			"end in .json or .yaml", "file", filepath.Join(p.app.cfg.Policies.Folder, name))
	}
	if err := p.publish(ctx, f.Documents, f.Faults); err != nil {
		return err
	}
	close(p.published)
	for len(p.refusals()) > 0 {
		if err := retry.Sleep(ctx, p.again); err != nil {
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
	if len(p.taken) > 0 && len(of(f.Faults, "")) > 0 { // the folder as a whole says nothing of those that wait
		return nil
	}
	maps.DeleteFunc(f.Documents, func(account string, _ policy.Document) bool { return p.taken[account] })
	faults := slices.DeleteFunc(f.Faults, func(fault policy.Fault) bool { return p.taken[fault.Account] })
	return p.publish(ctx, f.Documents, faults)
}

func (p *policyFolder) read() policy.Folder {
	return policy.ReadFolder(os.DirFS(p.app.cfg.Policies.Folder), policyStores(p.app.cfg))
}

// publish publishes documents, and logs and records faults.
func (p *policyFolder) publish(ctx context.Context, documents map[string]policy.Document, faults policy.Faults) error {
	folder := p.app.cfg.Policies.Folder
	before := p.refusals()
	for _, account := range slices.Sorted(maps.Keys(accountsOf(faults))) {
		now := of(faults, account)
		if slices.Equal(now, of(before, account)) {
			continue // it has been logged
		}
		p.app.log.Error(p.refusal(account), "account", account, "file", originOf(folder, now[0]), "err", reasons(now))
	}
	if err := p.publishOnTop(ctx, documents); err != nil {
		return err
	}
	for account := range documents {
		p.taken[account] = true
	}
	for account := range accountsOf(before) {
		if len(of(faults, account)) == 0 {
			p.app.log.Info("policy is no longer refused", "account", account, "folder", folder)
		}
	}
	// Last: readiness says that all is well when it is.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
	return nil
}

// publishOnTop publishes documents, on top of what others publish meanwhile.
func (p *policyFolder) publishOnTop(ctx context.Context, documents map[string]policy.Document) error {
	for {
		err := p.app.publishPolicies(ctx, documents, filepath.Base(p.app.cfg.Policies.Folder))
		var lost *policy.LostError
		if !errors.As(err, &lost) {
			return err
		}
		p.app.log.Warn("publish policies again: another writer was first", "err", err)
	}
}

// refusal is the log message about a refused document, or about the folder as a whole if account is empty.
func (p *policyFolder) refusal(account string) string {
	if account == "" {
		return "refuse policy folder: all policies that are in force stay, and it is read again until it is mended"
	}
	if _, ok := p.app.book.Document(account); ok {
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
func of(faults policy.Faults, account string) (some policy.Faults) {
	for _, f := range faults {
		if f.Account == account {
			some = append(some, f)
		}
	}
	return some
}

// refused names the policies that have a fault: documents of the folder, which are not in force, and records of other
// processes for accounts of this configuration, which are if they can be read.
func (p *policyFolder) refused() (all []string) {
	faults := p.refusals()
	for _, account := range slices.Sorted(maps.Keys(accountsOf(faults))) {
		first := of(faults, account)[0]
		origin := originOf(p.app.cfg.Policies.Folder, first)
		all = append(all, fmt.Sprintf("%s: %s", origin, policy.Fault{Key: first.Key, Reason: first.Reason}))
	}
	records := p.app.book.Faults()
	for _, account := range slices.Sorted(maps.Keys(records)) {
		if len(p.app.stores.IDs(account)) > 0 {
			all = append(all, fmt.Sprintf("account %s: %s", account, strings.ReplaceAll(records[account].Error(), "\n", "; ")))
		}
	}
	return all
}

// metric counts the policies that are refused.
func (p *policyFolder) metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_policy_refused",
		Help: "Policies that have a fault; /readyz and the log name them.",
	}, func() float64 { return float64(len(p.refused())) })
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
	return a.publishPolicies(ctx, map[string]policy.Document{account: doc}, by)
}

// inForce reports whether the newest revision of an account's policy says what doc says.
func (a *App) inForce(account string, doc policy.Document) bool {
	held, ok := a.book.Document(account)
	return ok && a.book.Faults()[account] == nil && reflect.DeepEqual(held, doc)
}

// publishPolicies publishes the documents that differ from those in force, and returns when this process has read
// which records took their revisions. Its error joins a *policy.LostError for each document before which another
// writer published another one.
func (a *App) publishPolicies(ctx context.Context, documents map[string]policy.Document, by string) error {
	var records []*pb.Policy
	var msgs []schemas.Message
	for account, doc := range documents {
		base := a.book.Revision(account) // first: what comes after it is not overwritten unseen
		if a.inForce(account, doc) {
			continue
		}
		rec, err := policy.Record(account, base, doc, by, time.Now().UTC())
		if err != nil {
			return fmt.Errorf("encode the policy of %s: %w", account, err)
		}
		records, msgs = append(records, rec), append(msgs, schemas.Message{Topic: schemas.Policies, Body: rec})
	}
	if err := a.producer.Publish(ctx, msgs...); err != nil {
		return fmt.Errorf("publish policies: %w", err)
	}
	var lost []error
	for _, rec := range records {
		for {
			settled, err := a.book.Settled(rec)
			if settled {
				if !a.inForce(rec.GetAccount(), documents[rec.GetAccount()]) {
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
