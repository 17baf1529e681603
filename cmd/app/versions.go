package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/restore"
	"github.com/millrace/millrace/streams/storage"
)

// A BytesState says what is known of bytes in a place.
type BytesState string

// The states.
const (
	// BytesRead: they were read just now, and have the digests that the audit log proves.
	BytesRead BytesState = "read"
	// BytesProven: the audit log has verified digests of the content, and these are its bytes according to the digests
	// that the store reports, or to the version on record.
	BytesProven BytesState = "proven"
	// BytesUnproven: nothing contradicts that these are the bytes, but there are no verified digests to compare.
	BytesUnproven BytesState = "unproven"
	// BytesDamaged: a check, or the reading just now, found other bytes.
	BytesDamaged BytesState = "damaged"
	// BytesUnknown: the store did not answer.
	BytesUnknown BytesState = "unknown"
)

// ItemBytes are the bytes of a content in one place, or a store that may have some.
type ItemBytes struct {
	Store  string             `json:"store"`
	Kept   string             `json:"kept,omitempty"` // the id of kept bytes; empty: the copy that is there now
	State  BytesState         `json:"state"`
	Since  *time.Time         `json:"since,omitempty"` // of kept bytes
	Until  *time.Time         `json:"until,omitempty"` // when they may expire; nil: not known, or never
	Reason storage.KeptReason `json:"reason,omitempty"`
	Error  string             `json:"error,omitempty"` // of a store that did not answer
}

// An ItemVersion is a content of an item that a store got or lost according to the audit log, and the places where its
// bytes still are.
type ItemVersion struct {
	Time     *time.Time  `json:"time"`
	Store    string      `json:"store"`
	Op       string      `json:"op"` // empty: kept bytes that are no content on record
	ID       string      `json:"id"` // of the Change
	Version  string      `json:"version"`
	Size     *int64      `json:"size"`
	Digests  digest.Set  `json:"digests"`
	Verified bool        `json:"verified"` // the digests, against bytes
	User     string      `json:"user"`
	Agent    string      `json:"agent"`
	Origin   string      `json:"origin"`
	Approved string      `json:"approved,omitempty"`
	Bytes    []ItemBytes `json:"bytes"`
}

// A VersionsQuery names an item.
type VersionsQuery struct {
	Account, Space, Item string
	// Read reads the bytes in every place, and compares them with the digests on record.
	Read bool
}

// Versions returns all contents of an item that the audit log knows in any store, oldest first, and then the kept bytes
// that are none of them. It needs no Kafka, and changes nothing.
func Versions(
	ctx context.Context, cfg *config.Config, log *slog.Logger, db *clickhouse.DB, q VersionsQuery,
) (all []ItemVersion, err error) {
	stores, err := newStores(cfg, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stores.close()) }()
	if len(stores.IDs(q.Account)) == 0 {
		return nil, fmt.Errorf("%w: the configuration has no account %q", precondition.Err, q.Account)
	}
	h := holdings{stores, db, q.Account, q.Space}
	items, err := h.items(ctx, []string{q.Item})
	if err == nil {
		err = h.kept(ctx, items)
	}
	if err != nil {
		return nil, err
	}
	item := items[0]
	damaged, err := read.DamagedVersions(ctx, db, schemas.Copy{Account: q.Account, Space: q.Space, Item: q.Item})
	if err != nil {
		return nil, err
	}
	v := &versions{holdings: h, query: q, item: item, keep: cfg.Replaced.Keep}
	item.Damaged = damagedIn(damaged)
	if err := v.describeKept(ctx); err != nil {
		return nil, err
	}
	return v.list(ctx)
}

// damagedIn returns a function that reports whether bytes were found to be damaged before they were kept.
func damagedIn(damaged []read.DamagedVersion) func(string, storage.Kept) bool {
	return func(store string, k storage.Kept) bool {
		return slices.ContainsFunc(damaged, func(d read.DamagedVersion) bool {
			earlier := k.At.IsZero() || !d.Found.After(k.At.Add(time.Second))
			return d.Store == store && d.Version == k.Object.Version && earlier
		})
	}
}

// versions makes the list of the versions of an item.
type versions struct {
	holdings
	query VersionsQuery
	item  *restore.Item
	keep  time.Duration
}

// describeKept completes what the listings of kept bytes have left out.
func (v *versions) describeKept(ctx context.Context) error {
	for store, kept := range v.item.Kept {
		st, all := v.stores.of(StoreName{v.account, store}), kept[:0]
		for _, k := range kept {
			if len(k.Object.Digests) == 0 {
				ref := storage.KeptRef{Space: v.space, Item: v.item.ID, ID: k.ID}
				full, err := storage.StatKept(ctx, st, ref)
				switch {
				case errors.Is(err, storage.ErrNotFound): // it has expired since
					continue
				case err != nil:
					v.item.KeptUnknown[store] = err
				default:
					k.Object = full.Object
				}
			}
			all = append(all, k)
		}
		v.item.Kept[store] = all
	}
	return ctx.Err()
}

func (v *versions) list(ctx context.Context) (all []ItemVersion, err error) {
	placed := map[storage.KeptRef]bool{} // by store and id
	for _, c := range v.item.Changes {
		row := versionOf(c)
		if c.GetOp() != pb.Op_OP_DELETE {
			if row.Bytes, err = v.bytesOf(ctx, c, placed); err != nil {
				return nil, err
			}
		}
		all = append(all, row)
	}
	for _, store := range v.stores.IDs(v.account) {
		for _, k := range v.item.Kept[store] {
			if placed[storage.KeptRef{Space: store, ID: k.ID}] {
				continue
			}
			state := BytesUnproven
			if v.item.Damaged(store, k) {
				state = BytesDamaged
			}
			size := k.Object.Size
			all = append(all, ItemVersion{Time: knownTime(k.Object.Modified), Store: store, Version: k.Object.Version,
				Size: &size, Digests: k.Object.Digests, Bytes: []ItemBytes{v.keptBytes(store, k, state)}})
		}
	}
	return all, nil
}

func versionOf(c *pb.Change) ItemVersion {
	row := ItemVersion{
		Time: knownTime(c.GetTime().AsTime()), Store: c.GetStore(), Op: word(c.GetOp(), "OP_"), ID: c.GetId(),
		Version: c.GetVersion(), Digests: c.GetDigests(), User: c.GetUser(), Agent: c.GetAgent(),
		Origin: word(c.GetOrigin(), "ORIGIN_"), Approved: c.GetApproved(), Bytes: []ItemBytes{},
		Verified: c.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED,
	}
	if !c.GetSizeUnknown() {
		size := c.GetSize()
		row.Size = &size
	}
	return row
}

// word returns the name of an enum value as the tables have it.
func word(v fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(v.String(), prefix))
}

func knownTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// bytesOf returns the places with bytes of a content, and the stores that may have some. It adds the kept bytes among
// them to placed.
func (v *versions) bytesOf(
	ctx context.Context, content *pb.Change, placed map[storage.KeptRef]bool,
) (all []ItemBytes, err error) {
	proven := v.item.Proven(content)
	expected := proven
	if len(proven) == 0 {
		expected = content.GetDigests()
	}
	all = []ItemBytes{}
	for _, store := range v.stores.IDs(v.account) {
		st, look := v.stores.of(StoreName{v.account, store}), v.item.Looks[store]
		unknown := look.Err
		if look.Present {
			live := v.item.Is(store, look.Object, expected)
			if live == digest.Agree || live == digest.Incomparable && v.isVersion(store, look.Object, content) {
				b := ItemBytes{Store: store, State: bytesState(live, proven)}
				v.read(&b, proven, func() (io.ReadCloser, error) {
					r, _, err := st.Open(ctx, v.space, v.item.ID, look.Object.Version)
					return r, err
				})
				all = append(all, b)
			}
		}
		for _, k := range v.item.Kept[store] {
			b, is := v.keptOf(store, k, content, expected, proven)
			if !is {
				continue
			}
			placed[storage.KeptRef{Space: store, ID: k.ID}] = true
			v.read(&b, proven, func() (io.ReadCloser, error) {
				r, _, err := storage.OpenKept(ctx, st, storage.KeptRef{Space: v.space, Item: v.item.ID, ID: k.ID})
				return r, err
			})
			all = append(all, b)
		}
		if err := v.item.KeptUnknown[store]; unknown == nil {
			unknown = err
		}
		if unknown != nil {
			all = append(all, ItemBytes{Store: store, State: BytesUnknown, Error: unknown.Error()})
		}
	}
	return all, ctx.Err()
}

// isVersion reports whether an object without comparable digests is the version that a Change of its store names.
func (v *versions) isVersion(store string, o storage.Object, content *pb.Change) bool {
	return content.GetStore() == store && content.GetVersion() != "" && content.GetVersion() == o.Version
}

// keptOf reports whether kept bytes are, or may be, those of a content.
func (v *versions) keptOf(
	store string, k storage.Kept, content *pb.Change, expected, proven digest.Set,
) (b ItemBytes, is bool) {
	agreement := v.item.Is(store, k.Object, expected)
	named := v.isVersion(store, k.Object, content)
	if v.item.Damaged(store, k) {
		return v.keptBytes(store, k, BytesDamaged), named || agreement == digest.Agree
	}
	is = agreement == digest.Agree || agreement == digest.Incomparable && named
	return v.keptBytes(store, k, bytesState(agreement, proven)), is
}

func bytesState(agreement digest.Agreement, proven digest.Set) BytesState {
	if agreement == digest.Agree && len(proven) > 0 {
		return BytesProven
	}
	return BytesUnproven
}

func (v *versions) keptBytes(store string, k storage.Kept, state BytesState) ItemBytes {
	b := ItemBytes{Store: store, Kept: k.ID, State: state, Since: knownTime(k.At), Reason: k.Reason}
	if k.Expires && !k.At.IsZero() && v.keep > 0 {
		until := k.At.Add(v.keep)
		b.Until = &until
	}
	return b
}

// read reads the bytes of a place if the query asks for it, and records what they are.
func (v *versions) read(b *ItemBytes, proven digest.Set, open func() (io.ReadCloser, error)) {
	if !v.query.Read || len(proven) == 0 {
		return
	}
	sums, err := readSums(open, proven)
	switch {
	case err != nil:
		b.State, b.Error = BytesUnknown, err.Error()
	case sums.Compare(proven) == digest.Agree:
		b.State = BytesRead
	default:
		b.State = BytesDamaged
	}
}

// readSums reads bytes, and returns their digests of the algorithms of like that are supported.
func readSums(open func() (io.ReadCloser, error), like digest.Set) (sums digest.Set, err error) {
	var known []string
	for _, alg := range like.Algorithms() {
		if digest.HexLen(alg) > 0 {
			known = append(known, alg)
		}
	}
	h, err := digest.New(known...)
	if err != nil {
		return nil, err
	}
	r, err := open()
	if err != nil {
		return nil, err
	}
	_, err = h.ReadFrom(r)
	return h.Sum(), errors.Join(err, r.Close())
}
