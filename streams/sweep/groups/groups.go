// Package groups checks whether the chunked items of a space are whole: a manifest document of DuraCloud and the chunks
// that it names. Each of them may pass its own check while the group lacks a part.
//
// It compares the documents, which it reads from the store, with the records, without a listing. What it finds is a
// guess: it changes no record, and requests a check of each copy that is absent or differs. If a store does not answer,
// it concludes nothing. If a page is read again, its findings are those of the store and the records then.
package groups

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/chunks"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
)

// Name is the name of the sweep, and the kind of its reports.
const Name = "groups"

const (
	defaultPage = 1000
	// maxDocuments and maxChunks end a page early: documents that are read, and chunks that they name.
	maxDocuments = 100
	maxChunks    = 10_000
	// settleTime is the age of records from which a group is judged. The upload of a large file takes hours, and its
	// document comes last; one that failed is repeated by the client's next run, usually within a day.
	settleTime = 24 * time.Hour
	// maxNamed is the number of findings that are named.
	maxNamed = 5
)

// Config configures the sweep of one space in one store.
type Config struct {
	Space     schemas.Copy // without an item
	NeverRead bool         // no document may be read: all groups are unknown
	Large     int64        // the smallest size in bytes of items of class large; 0: none is
	Page      int          // items of a page; 0: 1,000
	// Selected reports whether a document, or a chunk without one, is looked at; nil: all are.
	Selected func(item string) bool
}

// An Item is a live copy on record with the name of a document or of a chunk.
type Item struct {
	Name    string
	Version string    // of the content; empty: unknown
	Size    int64     // negative: unknown
	Time    time.Time // of the content
}

// Deps are the dependencies of the sweep. All are required.
type Deps struct {
	Store storage.Store
	// Items returns the first items after of.Item, at most limit, in the order of their names.
	Items func(ctx context.Context, of schemas.Copy, limit int) ([]Item, error)
	// Records returns the manifest records of copies, in their order.
	Records func(context.Context, []schemas.Copy) ([]*pb.CopyRecord, error)
	// Fresh returns when Records has everything that was published before the call.
	Fresh func(context.Context) error
	// OpenIncident and CloseIncident report whether a round has findings. One that is not complete closes nothing.
	OpenIncident, CloseIncident func(ctx context.Context, detail string) error
}

// New returns the sweep over one space.
func New(c Config, d Deps) (sweep.Sweep, error) {
	switch {
	case c.Space.Account == "" || c.Space.Store == "" || c.Space.Space == "" || c.Space.Item != "":
		return nil, errors.New("groups: account, store or space are missing, or there is an item")
	case c.Large < 0 || c.Page < 0:
		return nil, errors.New("groups: large or the page is negative")
	case d.Store == nil || d.Items == nil || d.Records == nil || d.Fresh == nil || d.OpenIncident == nil ||
		d.CloseIncident == nil:
		return nil, errors.New("groups: a dependency is missing")
	}
	if c.Page == 0 {
		c.Page = defaultPage
	}
	return (&checker{c, d}).page, nil
}

type checker struct {
	Config
	deps Deps
}

// A cursor is the state of a round.
type cursor struct {
	After  string           `json:"after,omitempty"` // the last item that was looked at
	Counts map[string]int64 `json:"counts,omitempty"`
	// Findings describe the first groups with a finding, Orphans are the first documents that chunks lack, and Unread says
	// why the first document was not read.
	Findings []string `json:"findings,omitempty"`
	Orphans  []string `json:"orphans,omitempty"`
	Unread   string   `json:"unread,omitempty"`
}

// maxText is the size of a text in the cursor, in bytes. Names of items and parts of documents may be longer.
const maxText = 300

// short returns a text as a message can have it.
func short(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "..."
}

func decode(state []byte) (c cursor, err error) {
	if state != nil {
		err = json.Unmarshal(state, &c)
	}
	if err != nil {
		return c, fmt.Errorf("read the cursor: %w", err)
	}
	if c.Counts == nil {
		c.Counts = map[string]int64{}
	}
	return c, nil
}

// page checks the groups of a part of the space.
func (k *checker) page(ctx context.Context, round sweep.Round, state []byte) (page sweep.Page, err error) {
	at, err := decode(state)
	if err != nil {
		return page, err
	}
	of := k.Space
	of.Item = at.After
	items, err := k.deps.Items(ctx, of, k.Page)
	if err != nil {
		return page, fmt.Errorf("read the items of %s: %w", k.Space, err)
	}
	page.Last = len(items) < k.Page
	p := &part{checker: k, round: round, cursor: &at, counts: map[string]int64{}}
	if len(items) > 0 {
		n, err := p.read(ctx, items)
		if err != nil {
			return page, err
		}
		page.Last = page.Last && n == len(items)
		if err := p.judgeAll(ctx, items[:n]); err != nil {
			return page, err
		}
		at.After = items[n-1].Name
	}
	page.Messages, page.Emitted, page.Counts = p.messages, int64(len(p.messages)), p.counts
	if page.Last {
		if err := p.end(ctx, &page); err != nil {
			return page, err
		}
	}
	if page.Next, err = json.Marshal(at); err != nil {
		return page, fmt.Errorf("write the cursor: %w", err)
	}
	return page, nil
}

// A part is the part of a space that one page checks.
type part struct {
	*checker
	round    sweep.Round
	cursor   *cursor
	groups   []group
	messages []schemas.Message
	counts   map[string]int64
}

func (p *part) count(what string) {
	p.counts[what]++
	p.cursor.Counts[what]++
}

func (p *part) selects(item Item) bool { return p.Selected == nil || p.Selected(item.Name) }

// read reads the documents of the first items, and returns how many items that are.
func (p *part) read(ctx context.Context, items []Item) (n int, err error) {
	named := 0
	for _, item := range items {
		if chunks.IsDocument(item.Name) && p.selects(item) {
			if len(p.groups) == maxDocuments || named >= maxChunks {
				break
			}
			g, err := p.document(ctx, item)
			if err != nil {
				return 0, err
			}
			p.groups = append(p.groups, g)
			named += len(g.named.Chunks)
			retry.Alive(ctx)
		}
		n++
	}
	return n, nil
}

// document reads a document. The error says that the store is unavailable.
func (p *part) document(ctx context.Context, item Item) (g group, err error) {
	g.item = strings.Clone(item.Name)
	switch {
	case p.NeverRead:
		return g, nil
	case item.Size > chunks.MaxDocument:
		g.source, g.version, g.fault = wasRead, item.Version, errTooLarge
		return g, nil
	}
	g.version = item.Version
	var text []byte
	version := item.Version
	_, err = retry.Policy{Attempts: 3, Wait: 200 * time.Millisecond}.Do(ctx, func() (err error) {
		text, g.sum, err = p.open(ctx, item.Name, version)
		if errors.Is(err, storage.ErrChanged) && version != "" { // its digests decide
			g.source, version = otherVersion, ""
			text, g.sum, err = p.open(ctx, item.Name, version)
		}
		if errors.Is(err, storage.ErrNotFound) {
			g.source = notOnRecord
			return nil
		}
		return err
	}, nil)
	switch {
	case err != nil && (ctx.Err() != nil || retry.ClassOf(err) == retry.ClassUnavailable ||
		errors.Is(err, storage.ErrNoSpace)):
		return g, fmt.Errorf("read document %q of %s: %w", item.Name, p.Space, err)
	case err != nil:
		g.source = notRead
		p.cursor.Unread = cmp.Or(p.cursor.Unread, short(fmt.Sprintf("document %q was not read: %v", item.Name, err)))
		return g, nil
	case g.source == notOnRecord:
		return g, nil
	case len(text) > chunks.MaxDocument:
		g.sum, g.fault = nil, errTooLarge
	}
	if g.source != otherVersion {
		g.source = wasRead
	}
	if g.fault == nil {
		g.named, g.fault = chunks.Parse(item.Name, text)
	}
	return g, nil
}

var errTooLarge = fmt.Errorf("it has more than %d bytes", chunks.MaxDocument)

func (p *part) open(ctx context.Context, item, version string) ([]byte, digest.Set, error) {
	r, _, err := p.deps.Store.Open(ctx, p.Space.Space, item, version)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close() // only read from
	return chunks.Read(r)
}

// judgeAll judges the groups and looks for orphans among the items. The records are those after the documents were
// read: one that was replaced or deleted meanwhile has another version, a young record, or none.
func (p *part) judgeAll(ctx context.Context, items []Item) error {
	known, err := p.records(ctx, items)
	if err != nil {
		return err
	}
	settled, findings := p.round.Started.Add(-settleTime), 0
	for _, g := range p.groups {
		if g.document = known[g.item]; !g.document.live {
			continue
		}
		for _, c := range g.named.Chunks {
			g.chunks = append(g.chunks, known[c.ID])
		}
		j := judge(g, settled)
		if p.report(g.item, j); j.why != "" {
			findings++
		}
	}
	if findings > 0 { // what a store has shown counts only if it is the right one
		if err := p.deps.Store.Marker(ctx); err != nil {
			return fmt.Errorf("read the marker of store %s/%s: %w", p.Space.Account, p.Space.Store, err)
		}
	}
	for _, item := range items {
		document, ok := chunks.DocumentOf(item.Name)
		if !ok || known[document].live || known[document].time.After(settled) || item.Time.After(settled) ||
			!p.selects(item) {
			continue
		}
		p.count(Orphans)
		if all := p.cursor.Orphans; len(all) < maxNamed && !slices.Contains(all, short(document)) {
			p.cursor.Orphans = append(all, short(document))
		}
	}
	return nil
}

// recordBatch is the number of records that are read at once.
const recordBatch = 1000

// records returns the records of the documents, of the chunks that they name, and of the documents of the items.
func (p *part) records(ctx context.Context, items []Item) (map[string]record, error) {
	known := map[string]record{}
	for _, item := range items {
		if document, ok := chunks.DocumentOf(item.Name); ok {
			known[document] = record{}
		}
	}
	for _, g := range p.groups {
		known[g.item] = record{}
		for _, c := range g.named.Chunks {
			known[c.ID] = record{}
		}
	}
	if len(known) == 0 {
		return nil, nil
	}
	if err := p.deps.Fresh(ctx); err != nil {
		return nil, fmt.Errorf("wait for the records: %w", err)
	}
	for names := range slices.Chunk(slices.Sorted(maps.Keys(known)), recordBatch) {
		copies := make([]schemas.Copy, len(names))
		for i, name := range names {
			copies[i] = p.Space
			copies[i].Item = name
		}
		found, err := p.deps.Records(ctx, copies)
		if err != nil {
			return nil, fmt.Errorf("read records of %s: %w", p.Space, err)
		}
		for i, name := range names {
			known[name] = recordOf(found[i])
		}
		retry.Alive(ctx)
	}
	return known, nil
}

func recordOf(r *pb.CopyRecord) record {
	m := r.GetManifest()
	if m.GetTime() == nil {
		return record{}
	}
	of := record{live: m.GetState() == pb.RecordState_RECORD_STATE_LIVE, size: m.GetSize(), version: m.GetVersion(),
		time: m.GetTime().AsTime()}
	if m.GetSizeUnknown() {
		of.size = -1
	}
	if m.GetProvenance() != pb.Provenance_PROVENANCE_CLAIMED { // a claim alone makes no copy faulty
		of.digests = m.GetDigests()
	}
	pass := r.GetLastPass()
	of.passed = pass != nil && !r.GetLastAttempt().AsTime().After(pass.AsTime())
	return of
}

// report counts a judgement, and requests the checks that decide.
func (p *part) report(document string, j judgement) {
	p.count(string(j.verdict))
	if j.why != "" && len(p.cursor.Findings) < maxNamed {
		p.cursor.Findings = append(p.cursor.Findings, short(fmt.Sprintf("%q is %s (%s)", document, j.verdict, j.why)))
	}
	for _, c := range j.suspects {
		at := p.Space
		at.Item = c.ID
		p.messages = append(p.messages, sweep.CheckRequest{Sweep: Name, Copy: at, Size: c.Size, Large: p.Large}.Task(p.round))
	}
}

// end ends the round: it opens or closes the incident, and adds the report to the last page. There is no report if this
// round and the one before have found no group.
func (p *part) end(ctx context.Context, page *sweep.Page) error {
	found := int64(0)
	for _, v := range findings() {
		found += p.cursor.Counts[string(v)]
	}
	complete := p.cursor.Counts[string(Unknown)] == 0
	var err error
	switch {
	case found > 0:
		err = p.deps.OpenIncident(ctx, fmt.Sprintf("%d groups of chunks have findings: %s", found,
			listed(p.cursor.Findings, found)))
	case complete && p.cursor.Counts[string(Young)] == 0: // a young one may be the damaged one that was touched
		err = p.deps.CloseIncident(ctx, "no group of chunks has a finding")
	}
	if err != nil {
		return err
	}
	before, err := decode(p.round.Previous)
	if err != nil || len(p.cursor.Counts) == 0 && len(before.Counts) == 0 {
		return err
	}
	var detail []string
	if found > 0 {
		detail = append(detail, listed(p.cursor.Findings, found))
	}
	if n := len(p.cursor.Orphans); n > 0 {
		detail = append(detail, fmt.Sprintf("chunks without their document: %q", p.cursor.Orphans))
	}
	if p.cursor.Unread != "" {
		detail = append(detail, p.cursor.Unread)
	}
	page.Messages = append(page.Messages, schemas.Message{Topic: schemas.Reports, Body: &pb.Report{
		Id: schemas.ID("report", Name, p.round.ID), Kind: Name, Account: p.Space.Account, Store: p.Space.Store,
		Space: p.Space.Space, Round: p.round.ID, Started: timestamppb.New(p.round.Started), Finished: timestamppb.Now(),
		Counts: maps.Clone(p.cursor.Counts), Complete: complete, Detail: strings.Join(detail, "; "),
	}})
	return nil
}

// listed joins the first of n findings.
func listed(first []string, n int64) string {
	text := strings.Join(first, "; ")
	if n > int64(len(first)) {
		text += "; and more"
	}
	return text
}
