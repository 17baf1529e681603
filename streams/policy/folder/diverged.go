package folder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
)

// A step is the action for a document of a policy folder.
type step int

const (
	stepPublish step = iota
	stepNothing
	stepDiverged // report, do not publish
)

// stepOf returns the action for a document of the folder. published: its file was published
// before. same: it equals the active policy. gap: a record after the newest revision cannot be
// decoded, and no operator has accepted that.
func stepOf(published, same, gap bool) step {
	switch {
	case gap:
		return stepDiverged
	case !published:
		return stepPublish
	case same:
		return stepNothing
	}
	return stepDiverged
}

// publishChanged publishes the documents with changed files, and retries when another writer
// publishes first. It returns, by account, the reasons why other documents that are not active are
// not published.
func (p *Folder) publishChanged(ctx context.Context, f policy.Folder) (diverged map[string]string, err error) {
	for {
		changed := map[string]policy.Document{}
		diverged = map[string]string{}
		for account, doc := range f.Documents {
			gap := p.hasOpenGap(account)
			made := p.deps.Registry.Published(account, f.Sums[account])
			switch stepOf(made, p.isActive(account, doc, p.recordFaults(account)), gap) {
			case stepPublish:
				changed[account] = doc
			case stepDiverged:
				diverged[account] = p.whyDiverged(account, f.Sums[account], gap)
			}
		}
		err = p.publish(ctx, changed, f.Sums, path.Base(p.config.Location))
		var lost *policy.LostError
		if !errors.As(err, &lost) {
			return diverged, err
		}
		p.deps.Log.Warn("publish policies again: another writer was first", "err", err)
		now := p.read() // the other may have published a newer file
		maps.DeleteFunc(f.Documents, func(account string, _ policy.Document) bool {
			_, ok := now.Documents[account]
			return !ok
		})
		for account := range f.Documents {
			f.Documents[account], f.Sums[account] = now.Documents[account], now.Sums[account]
		}
	}
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
		"which was published before: update the file, or change it in any way to publish it", revision, sum)
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
		case p.active[account]:
			over = "the document of the folder is active"
		case unknown[""], unknown[account]:
			continue
		}
		if report(account, p.deps.Board.Close(ctx, about(account), over)) {
			delete(p.open, account)
		}
	}
	p.diverged = diverged
}
