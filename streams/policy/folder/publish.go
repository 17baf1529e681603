package folder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// Set publishes a document for an account if it differs from the active one, and returns when this process follows it.
// A *policy.LostError reports that another writer's document was published first and is active. The error of an invalid
// document is policy.Faults.
func (p *Folder) Set(ctx context.Context, account string, doc policy.Document, by string) error {
	if err := doc.Validate(p.stores(account)); err != nil {
		return fmt.Errorf("policy of account %q: %w", account, err)
	}
	return p.publish(ctx, map[string]policy.Document{account: doc}, nil, by)
}

// stores returns the ids of the configured stores of an account.
func (p *Folder) stores(account string) (ids []string) {
	for _, s := range p.config.Accounts()[account] {
		ids = append(ids, s.ID)
	}
	return ids
}

// publish publishes the documents that differ from the active ones. sums are the digests of
// the documents' files, if they have any: such a document is also published if its file was not
// published before. It returns when this process has read which record became each revision. The
// error joins a *policy.LostError for each document that lost against another writer.
func (p *Folder) publish(
	ctx context.Context, documents map[string]policy.Document, sums map[string]string, by string,
) error {
	done := func(account string) bool {
		doc, sum := documents[account], sums[account]
		// A new record also ends a gap that an operator has accepted.
		return p.isActive(account, doc, p.deps.Registry.Faults(account)) &&
			(sum == "" || slices.Contains(p.deps.Registry.Files(account), sum))
	}
	var records []*pb.Policy
	var msgs []schemas.Message
	for account, doc := range documents {
		base := p.deps.Registry.Revision(account) // read first, so that a later revision is not overwritten
		if done(account) {
			continue
		}
		rec, err := policy.Record(account, base, doc, by, time.Now().UTC())
		if err != nil {
			return fmt.Errorf("encode the policy of %s: %w", account, err)
		}
		if sums[account] != "" {
			rec.FileSha256, rec.From, rec.Location = sums[account], policy.FromFolder, p.config.Location
		}
		records, msgs = append(records, rec), append(msgs, schemas.Message{Topic: schemas.Policies, Body: rec})
	}
	if err := p.deps.Publisher.Publish(ctx, msgs...); err != nil {
		return fmt.Errorf("publish policies: %w", err)
	}
	var lost []error
	for _, rec := range records {
		for {
			settled, err := p.deps.Registry.Settled(rec)
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

// isActive reports whether the active policy of an account equals doc. f are the faults of the
// policy.
func (p *Folder) isActive(account string, doc policy.Document, f policy.RecordFaults) bool {
	held, ok := p.deps.Registry.Document(account)
	return ok && f.Unread == nil && f.Gap == nil && held.Equal(doc)
}

// hasOpenGap reports whether a record after the newest revision of an account cannot be decoded, and no operator has
// accepted that.
func (p *Folder) hasOpenGap(account string) bool {
	if p.deps.Registry.Faults(account).Gap == nil {
		return false
	}
	accepted := false
	for _, about := range p.deps.Unreadable(account) {
		if !p.deps.Board.Accepted(about) {
			return true
		}
		accepted = true
	}
	return !accepted
}

// recordFaults returns the faults of the newest records of an account's policy, without those that
// an operator has accepted.
func (p *Folder) recordFaults(account string) policy.RecordFaults {
	f := p.deps.Registry.Faults(account)
	if f.Gap != nil && !p.hasOpenGap(account) {
		f.Gap = nil
	}
	return f
}
