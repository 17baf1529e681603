package folder

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
)

// publishChanged publishes the documents with changed files that need not wait. It returns, by account, the reasons why
// others have diverged. Nothing is published over a record that cannot be decoded, until an operator has accepted it.
func (p *Folder) publishChanged(ctx context.Context, f policy.Folder) (diverged map[string]string, err error) {
	changed, waiting, now := map[string]policy.Document{}, map[string]candidate{}, time.Now()
	diverged = map[string]string{}
	for account, doc := range f.Documents {
		sum, revision := f.Sums[account], p.deps.Registry.Revision(account)
		gap, same := p.hasOpenGap(account), p.isActive(account, doc, p.recordFaults(account))
		published := p.deps.Registry.Files(account)
		if n := len(published); n > 0 && p.followed[account] {
			published = published[n-1:] // a change back to an earlier file is a change
		}
		old := slices.Contains(published, sum)
		if old && same && !gap {
			continue
		}
		c := p.waiting[account]
		if c.sum != sum {
			c = candidate{sum, revision, now}
		}
		waiting[account] = c
		active, _ := p.deps.Registry.Document(account)
		switch why := active.Weakens(doc); {
		case gap, !same && (old || c.revision != revision): // or another writer came after the file
			diverged[account] = p.whyDiverged(account, sum, gap)
		case why == "" || now.Sub(c.since) >= weakerTime:
			changed[account] = doc
		case c.since.Equal(now):
			p.deps.Log.Warn("delay policy: it weakens the active one, and is published when its file has not changed for "+
				"a minute", "account", account, "folder", p.config.Location, "reason", why)
		}
	}
	err = p.publish(ctx, changed, f.Sums, path.Base(p.config.Location))
	for account := range changed {
		if delete(waiting, account); err != nil {
			waiting[account] = candidate{} // it is considered anew
		}
	}
	p.waiting = waiting
	return diverged, err
}

// whyDiverged returns the reason why a document that is not active is not published.
func (p *Folder) whyDiverged(account, sum string, gap bool) string {
	revision := p.deps.Registry.Revision(account)
	if gap {
		return fmt.Sprintf("a record after revision %d cannot be decoded: "+
			"the document of the folder is not published until an operator closes the incident %s of that record",
			revision, incident.RecordUnreadable)
	}
	return fmt.Sprintf("revision %d is active and differs from the document of the folder (sha256 %s), "+
		"which is older: update the file, or change it in any way to publish it", revision, sum)
}

// reportDiverged opens the incidents of diverged documents and closes those of the others. If
// publishing an incident fails, the next read of the folder, or the next process, repeats it.
// Processes with different folders append to an incident only when their own reasons change.
func (p *Folder) reportDiverged(ctx context.Context, f policy.Folder, diverged map[string]string) {
	report := func(account string, err error) bool {
		if err != nil && ctx.Err() == nil {
			p.deps.Log.Warn("report a diverged policy", "account", account, "err", err)
		}
		return err == nil
	}
	about := func(account string) incident.Subject {
		return incident.Subject{Account: account, Kind: incident.PolicyDiverged}
	}
	for account, why := range diverged {
		changed := p.diverged[account] != why
		if changed {
			p.deps.Log.Error("do not publish diverged policy", "account", account, "reason", why)
		}
		if changed || !p.deps.Board.IsOpen(about(account)) {
			report(account, p.deps.Board.Open(ctx, about(account), why))
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
		case p.active[account] != "":
			over = "the document of the folder is active"
		case unknown[""], unknown[account], p.waiting[account] != candidate{}:
			continue
		}
		if report(account, p.deps.Board.Close(ctx, about(account), over)) {
			delete(p.open, account)
		}
	}
	p.diverged = diverged
}
