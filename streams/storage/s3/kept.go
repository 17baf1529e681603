package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

var _ storage.Keeper = (*Store)(nil)

// The first byte of a Kept.ID. The rest is a version id, or the last part of the key of a quarantined object.
const (
	keptVersion    = "v"
	keptQuarantine = "q"
)

const (
	// maxSkipped is the number of other keys that a listing of the versions of many items reads. If there are more, the
	// items are listed one by one.
	maxSkipped = 2000
	// versionsPage is the number of entries in a page of versions, and oneItemPage that for one item.
	versionsPage = 1000
	oneItemPage  = 100
)

// Kept implements storage.Keeper. In a bucket with versioning these are all versions but the current one, whoever has
// replaced or deleted them. The time and the reason of a quarantined object's original are not recorded.
func (s *Store) Kept(ctx context.Context, space string, items []string) iter.Seq2[storage.Kept, error] {
	return func(yield func(storage.Kept, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		versions, err := s.keptVersions(ctx, space, items)
		if err != nil {
			yield(storage.Kept{}, err)
			return
		}
		for _, item := range items {
			all := versions[item]
			quarantined, err := s.listQuarantined(ctx, space, item)
			all = append(all, quarantined...)
			slices.SortStableFunc(all, func(a, b storage.Kept) int { return a.At.Compare(b.At) })
			for _, k := range all {
				if !yield(k, nil) {
					return
				}
			}
			if err != nil {
				yield(storage.Kept{}, err)
				return
			}
		}
	}
}

// keptVersions returns the versions of the items except the current ones, oldest first. Items whose keys the service
// cannot store have none.
func (s *Store) keptVersions(ctx context.Context, space string, items []string) (map[string][]storage.Kept, error) {
	all, wanted := map[string][]storage.Kept{}, []string(nil)
	err := storage.CheckSpace(space)
	for _, item := range items {
		err = cmp.Or(err, storage.CheckItem(item))
		if _, _, kerr := s.itemKey(space, item); kerr == nil {
			wanted = append(wanted, item)
		}
	}
	if err != nil {
		return nil, retry.Permanent(err)
	}
	if !s.features.Load().Versions || len(wanted) == 0 {
		return all, nil
	}
	bucket, prefix, err := s.layout.space(space)
	if err != nil {
		return nil, err
	}
	l := versionListing{in: location{bucket, prefix}, prefix: commonPrefix(wanted[0], wanted[len(wanted)-1]),
		wanted: wanted, page: versionsPage}
	complete, err := s.collectVersions(ctx, l, all)
	for i := 0; err == nil && !complete && i < len(wanted); i++ {
		l.prefix, l.wanted, l.page = wanted[i], wanted[i:i+1], oneItemPage
		_, err = s.collectVersions(ctx, l, all)
	}
	if err != nil {
		return nil, fmt.Errorf("list the versions of items in space %q: %w", space, err)
	}
	return all, nil
}

func commonPrefix(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return strings.ToValidUTF8(a[:n], "")
}

// A versionListing lists the versions of keys that begin with a prefix, to find those of some items.
type versionListing struct {
	in     location // the bucket, and the key prefix of the space
	prefix string   // of the items
	wanted []string // sorted
	page   int      // entries in a page
}

// collectVersions adds the versions of the wanted items to all. complete is false if there were too many other keys in
// between: then it adds nothing. It does not rely on the order of a page: versitygw lists all delete markers of a page
// before its versions.
func (s *Store) collectVersions(
	ctx context.Context, l versionListing, all map[string][]storage.Kept,
) (complete bool, err error) {
	ctx, cancel := context.WithCancel(withListing(ctx))
	defer cancel()
	o := minio.ListObjectsOptions{Prefix: l.in.key + l.prefix, Recursive: true, WithVersions: true, MaxKeys: l.page}
	if s.cfg.RequesterPays {
		o.Set("x-amz-request-payer", "requester")
	}
	entries, last := map[string][]minio.ObjectInfo{}, l.wanted[len(l.wanted)-1]
	skipped, beyond := 0, 0 // beyond: consecutive entries after the last wanted item
	for info := range s.core.ListObjectsIter(ctx, l.in.bucket, o) {
		if info.Err != nil {
			err := s.translate(ctx, aBucket, fmt.Sprintf("list bucket %q", l.in.bucket), info.Err)
			return errors.Is(err, storage.ErrNoSpace), ignoreNoSpace(err) // no bucket has no versions
		}
		if ctx.Err() != nil {
			break
		}
		item := strings.TrimPrefix(info.Key, l.in.key)
		if beyond++; item <= last {
			beyond = 0
		}
		if beyond > l.page {
			break
		}
		if _, is := slices.BinarySearch(l.wanted, item); is {
			entries[item] = append(entries[item], info)
		} else if skipped++; skipped > maxSkipped && len(l.wanted) > 1 {
			return false, nil
		}
	}
	if ctx.Err() != nil { // the client ends its listing without an error
		return false, storage.ContextErr(ctx)
	}
	for item, versions := range entries {
		all[item] = keptOf(item, versions)
	}
	return true, nil
}

func ignoreNoSpace(err error) error {
	if errors.Is(err, storage.ErrNoSpace) {
		return nil
	}
	return err
}

// keptOf describes the versions of an item except the current one, oldest first. Each was replaced or deleted by the
// next newer entry, whose time may be earlier: versitygw dates delete markers by another clock than objects.
func keptOf(item string, entries []minio.ObjectInfo) (all []storage.Kept) {
	slices.SortStableFunc(entries, func(a, b minio.ObjectInfo) int { // the newest first
		if a.IsLatest != b.IsLatest {
			return boolCompare(b.IsLatest, a.IsLatest)
		}
		return b.LastModified.Compare(a.LastModified)
	})
	seen := map[string]bool{} // versitygw repeats the last version of a page at the start of the next one
	for i, info := range entries {
		if info.IsLatest || info.IsDeleteMarker || seen[info.VersionID] {
			continue
		}
		seen[info.VersionID] = true
		k := storage.Kept{ID: keptVersion + cmp.Or(info.VersionID, "null"), Object: storage.Object{
			Item: item, Size: info.Size, Modified: info.LastModified.UTC().Truncate(time.Second),
			Version: version(info), ETag: info.ETag,
		}}
		if i > 0 {
			k.At, k.Reason = entries[i-1].LastModified.UTC().Truncate(time.Second), storage.KeptReplaced
			if entries[i-1].IsDeleteMarker {
				k.Reason = storage.KeptDeleted
			}
		}
		all = append(all, k)
	}
	slices.Reverse(all)
	for i := 1; i < len(all); i++ {
		if all[i].At.Before(all[i-1].At) {
			all[i].At = all[i-1].At
		}
	}
	return all
}

// boolCompare orders false before true.
func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// quarantined returns the bucket and the key prefix of the quarantined objects of an item.
func (s *Store) quarantined(space, item string) location {
	bucket, prefix := s.layout.control()
	return location{bucket, fmt.Sprintf("%skept/%s/%s/", prefix, escape(space), hashName(item))}
}

// listQuarantined lists the quarantined objects of an item, oldest first.
func (s *Store) listQuarantined(ctx context.Context, space, item string) (all []storage.Kept, err error) {
	at := s.quarantined(space, item)
	what := "list the quarantined objects of " + itemText(space, item)
	for info := range s.core.ListObjectsIter(withListing(ctx), at.bucket,
		minio.ListObjectsOptions{Prefix: at.key, Recursive: true}) {
		if info.Err != nil {
			return all, s.translate(ctx, aBucket, what, info.Err)
		}
		name := strings.TrimPrefix(info.Key, at.key)
		if moved, etag, ok := parseQuarantined(name); ok {
			all = append(all, storage.Kept{ID: keptQuarantine + name, At: moved, Expires: true, Object: storage.Object{
				Item: item, Size: info.Size, Version: `"` + etag + `"`, ETag: etag,
			}})
		}
	}
	if ctx.Err() != nil {
		return all, fmt.Errorf("%s: %w", what, storage.ContextErr(ctx))
	}
	return all, nil
}

// parseQuarantined returns the time and the original ETag in the last part of the key of a quarantined object.
func parseQuarantined(name string) (at time.Time, etag string, ok bool) {
	text, etag, _ := strings.Cut(name, "-")
	at, err := time.Parse(quarantineTime, text)
	plain := !strings.ContainsFunc(etag, func(c rune) bool { return c <= ' ' || c > '~' || c == '/' || c == '"' })
	return at, etag, err == nil && etag != "" && plain
}

// A keptObject is where kept bytes are.
type keptObject struct {
	location
	versionID string // "" in quarantine
	kept      storage.Kept
}

// locateKept returns the object that ref names. It makes no request.
func (s *Store) locateKept(ref storage.KeptRef) (keptObject, error) {
	if err := errors.Join(storage.CheckSpace(ref.Space), storage.CheckItem(ref.Item)); err != nil {
		return keptObject{}, retry.Permanent(err)
	}
	if id, is := strings.CutPrefix(ref.ID, keptVersion); is && s.features.Load().Versions && isVersionID(id) {
		bucket, key, err := s.itemKey(ref.Space, ref.Item)
		if err == nil {
			return keptObject{location{bucket, key}, id, storage.Kept{ID: ref.ID}}, nil
		}
	}
	if name, is := strings.CutPrefix(ref.ID, keptQuarantine); is {
		if moved, _, ok := parseQuarantined(name); ok {
			at := s.quarantined(ref.Space, ref.Item)
			at.key += name
			return keptObject{at, "", storage.Kept{ID: ref.ID, At: moved, Expires: true}}, nil
		}
	}
	return keptObject{}, keptAbsent(ref)
}

func isVersionID(id string) bool {
	return id != "" && !strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '/' })
}

func keptAbsent(ref storage.KeptRef) error {
	return fmt.Errorf("bytes %q kept of %s: %w", ref.ID, itemText(ref.Space, ref.Item), storage.ErrNotFound)
}

// StatKept implements storage.Keeper.
func (s *Store) StatKept(ctx context.Context, ref storage.KeptRef) (storage.Kept, error) {
	k, err := s.locateKept(ref)
	if err != nil {
		return storage.Kept{}, err
	}
	o := s.getOptions()
	o.VersionID = k.versionID
	info, err := s.head(ctx, k.location, o)
	if err != nil {
		err = s.translate(ctx, anItem, "stat bytes kept of "+itemText(ref.Space, ref.Item), err)
		return storage.Kept{}, keptError(ref, err)
	}
	return s.describeKept(ref, k, info)
}

// OpenKept implements storage.Keeper.
func (s *Store) OpenKept(ctx context.Context, ref storage.KeptRef) (io.ReadCloser, storage.Kept, error) {
	at, err := s.locateKept(ref)
	if err != nil {
		return nil, storage.Kept{}, err
	}
	what := "open bytes kept of " + itemText(ref.Space, ref.Item)
	body, info, err := s.openAt(ctx, what, at.location, at.versionID)
	if err != nil {
		if err = keptError(ref, err); !isAbsent(err) {
			err = s.requestRestore(ctx, what, at.location, at.versionID, err)
		}
		return nil, storage.Kept{}, err
	}
	k, err := s.describeKept(ref, at, info)
	if err != nil {
		body.Close()
		return nil, storage.Kept{}, err
	}
	return body, k, nil
}

// keptError returns ErrNotFound for a version or a quarantined object that is absent, or whose id the service refuses.
func keptError(ref storage.KeptRef, err error) error {
	if isAbsent(err) || errors.Is(err, errInvalidArgument) {
		return fmt.Errorf("%w (%w)", keptAbsent(ref), err)
	}
	return err
}

// describeKept converts a response of the service.
func (s *Store) describeKept(ref storage.KeptRef, at keptObject, info minio.ObjectInfo) (storage.Kept, error) {
	if at.versionID != "" && at.versionID != "null" && info.VersionID != at.versionID { // the service ignores versionId
		return storage.Kept{}, fmt.Errorf("bytes kept of %s: got version %q, want %q: %w",
			itemText(ref.Space, ref.Item), info.VersionID, at.versionID, storage.ErrChanged)
	}
	o, err := s.object(ref.Space, ref.Item, info)
	if err != nil {
		return storage.Kept{}, err
	}
	k := at.kept
	if at.versionID == "" {
		_, o.ETag, _ = parseQuarantined(strings.TrimPrefix(ref.ID, keptQuarantine))
		o.Version, o.Modified = `"`+o.ETag+`"`, time.Time{}
	}
	k.Object = o
	return k, nil
}
