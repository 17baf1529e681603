package read

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// A StoredCopy is what the manifest has of an item in one store.
type StoredCopy struct {
	Store string
	Live  bool
	Size  int64 // of a live copy in bytes; negative: unknown
	// Time is that of the content of a live copy, or of the delete; zero: only checks have reported the copy.
	Time       time.Time
	SourceTime time.Time // of the content that a live copy was made from; zero: unknown
	Inferred   bool      // only a sweep or a check noticed the delete
	Disputed   bool      // a wrong clock may have made the delete newer than the content, as in Record.disputed
	// Digests are those of the content of a live copy, each as ALGORITHM:HEX, separated by blanks: the verified ones, if
	// there are any.
	Digests string
}

// EachItem calls each for every item of an account with its copies in all stores, in the order of the bytes of spaces
// and item ids. The slice is valid during the call. An item id shares its memory with many others: clone it to keep it.
// EachItem stops at the first error of each, and returns it.
//
// It reads the rows of each store in the order of the table, with one query, and merges the rows of a copy here: the
// memory that it takes does not depend on the number of copies. Meanwhile the queries of stores that are ahead wait.
func EachItem(
	ctx context.Context, db *clickhouse.DB, account string, each func(space, item string, copies []StoredCopy) error,
) error {
	return eachItem(ctx, db, itemQuery{account, blockRows}, each)
}

// An itemQuery selects the items of an account, in blocks of at most so many rows of all stores together.
type itemQuery struct {
	account string
	rows    int
}

func eachItem(
	ctx context.Context, db *clickhouse.DB, q itemQuery, each func(space, item string, copies []StoredCopy) error,
) error {
	stores, err := StoresOf(ctx, db, q.account)
	if err != nil {
		return err
	}
	q.rows = max(q.rows/max(len(stores), 1), 1)
	g, ctx := errgroup.WithContext(ctx)
	var from []*storeCopies
	for _, store := range stores {
		s := &storeCopies{store: store, batches: make(chan []keyedCopy)}
		from = append(from, s)
		g.Go(func() error {
			err := s.read(ctx, db, q)
			if err == nil {
				close(s.batches)
			}
			return err
		})
	}
	g.Go(func() error { return mergeStores(ctx, from, each) })
	return g.Wait()
}

// StoresOf returns the stores that have copies of an account on record, also those that are not configured.
func StoresOf(ctx context.Context, db *clickhouse.DB, account string) ([]string, error) {
	return distinctKeys(ctx, func(last string) (string, []any) {
		return "SELECT store::String AS name FROM {db}.copy_state WHERE account = ? AND store > ?" +
			" ORDER BY account, store LIMIT 1", []any{account, last}
	}, db)
}

// AccountsOnRecord returns the accounts that have copies on record, also those that are not configured.
func AccountsOnRecord(ctx context.Context, db *clickhouse.DB) ([]string, error) {
	return distinctKeys(ctx, func(last string) (string, []any) { // the rows of positions have the account ''
		return "SELECT account::String AS name FROM {db}.copy_state WHERE account > ? ORDER BY account LIMIT 1", []any{last}
	}, db)
}

// distinctKeys returns the distinct values of a part of the primary key. next returns the query for the first value
// after another; each reads a few granules of each part.
func distinctKeys(
	ctx context.Context, next func(last string) (statement string, args []any), db *clickhouse.DB,
) (all []string, err error) {
	type row struct {
		Name string `ch:"name"`
	}
	for last := ""; ; {
		statement, args := next(last)
		rows, err := clickhouse.Query[row](ctx, db, "list what is on record", statement, args...)
		if err != nil || len(rows) == 0 {
			return all, err
		}
		last = rows[0].Name
		all = append(all, last)
	}
}

// blockRows is the number of rows of the state in the blocks of all stores. The engine's blocks are smaller if the rows
// are large.
const blockRows = 1 << 17

// A keyedCopy is a copy with its key.
type keyedCopy struct {
	space, item string
	copy        StoredCopy
}

// compare compares the keys of two copies.
func (k *keyedCopy) compare(o *keyedCopy) int {
	if c := strings.Compare(k.space, o.space); c != 0 {
		return c
	}
	return strings.Compare(k.item, o.item)
}

// storeCopies are the copies of one store.
type storeCopies struct {
	store   string
	batches chan []keyedCopy // unbuffered: a batch has been taken when the next one is received

	batch []keyedCopy // of the reader of batches
}

// next returns the first copy that was not taken; nil at the end. The caller takes it by a call of take.
func (s *storeCopies) next(ctx context.Context) (*keyedCopy, error) {
	for len(s.batch) == 0 {
		select {
		case b, ok := <-s.batches:
			if !ok {
				return nil, nil // read to its end
			}
			s.batch = b
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return &s.batch[0], nil
}

func (s *storeCopies) take() { s.batch = s.batch[1:] }

// mergeStores calls each for the items of all stores.
func mergeStores(ctx context.Context, from []*storeCopies, each func(string, string, []StoredCopy) error) error {
	var copies []StoredCopy
	for {
		var first *keyedCopy
		for _, s := range from {
			k, err := s.next(ctx)
			if err != nil {
				return err
			}
			if k != nil && (first == nil || k.compare(first) < 0) {
				first = k
			}
		}
		if first == nil {
			return context.Cause(ctx)
		}
		space, item := first.space, first.item
		copies = copies[:0]
		for _, s := range from {
			if k, err := s.next(ctx); err != nil {
				return err
			} else if k != nil && k.space == space && k.item == item {
				copies = append(copies, k.copy)
				s.take()
			}
		}
		if err := each(space, item, copies); err != nil {
			return err
		}
	}
}

// never is a source time that is not on record.
const never = math.MinInt64

// stateRows selects the rows of the state in the order of the table, which needs no sorting. The values are those of
// the table, so that the engine computes little. There are no pages: for each one, the engine would look at the marks
// of all rows behind it.
const stateRows = "SELECT space, item, content.ver AS written, deleted.ver AS gone, content.change AS written_by," +
	" content.size AS size, ifNull(toUnixTimestamp64Milli(content.source_time), toInt64(%d)) AS source_time," +
	" toUInt8(deleted.origin IN ('sweep', 'fixity')) AS inferred, digests::Map(String, String) AS all_digests," +
	" content.ns AS written_ns, deleted.ns AS gone_ns, sipHash64(content.version) AS version," +
	" if(deleted.version = '', 0, sipHash64(deleted.version)) AS gone_version" +
	" FROM {db}.copy_state WHERE account = %s AND store = %s AND (content.ver > 0 OR deleted.ver > 0)" +
	" ORDER BY account, store, space, item" + onePass + ", optimize_read_in_order = 1, max_block_size = %d"

// stateColumns are the columns of a block of stateRows.
type stateColumns struct {
	space, item        proto.ColStr
	written, gone      proto.ColUInt128
	writtenBy          proto.ColFixedStr16
	size, sourceTime   proto.ColInt64
	inferred           proto.ColUInt8
	ns, goneNS         proto.ColUInt64 // to the reported times
	of, goneOf         proto.ColUInt64 // hashes of the versions; that of a delete is 0 without one
	algorithms, values proto.ColStr
	digests            proto.ColMap[string, string] // of algorithms and values

	items string // the text of item
}

// results returns the columns in the order of the query.
func (c *stateColumns) results() proto.Results {
	c.digests.Keys, c.digests.Values = &c.algorithms, &c.values
	return proto.Results{{Data: &c.space}, {Data: &c.item}, {Data: &c.written}, {Data: &c.gone}, {Data: &c.writtenBy},
		{Data: &c.size}, {Data: &c.sourceTime}, {Data: &c.inferred}, {Data: &c.digests},
		{Data: &c.ns}, {Data: &c.goneNS}, {Data: &c.of}, {Data: &c.goneOf}}
}

// A mergedCopy merges the rows of one copy.
type mergedCopy struct {
	space, item      string
	written, gone    proto.UInt128 // the newest versions; zero: none
	writtenBy        [16]byte
	size, sourceTime int64
	inferred         bool
	ns, goneNS       uint64
	of, goneOf       uint64
	rows             int
	digests          []storedDigest // of all rows

	text, hex []byte // of digests, and of the result; used again for each copy
}

// A storedDigest is a value of the column digests, with its algorithm.
type storedDigest struct{ algorithm, value []byte }

func newer(a, b proto.UInt128) bool { return a.High > b.High || a.High == b.High && a.Low > b.Low }

// read sends the copies of a store, those of a block at a time. The last copy of a block may have rows in the next one.
func (s *storeCopies) read(ctx context.Context, db *clickhouse.DB, q itemQuery) error {
	var c stateColumns
	var m mergedCopy
	var batch, before []keyedCopy // batch is filled while copies of the batch before are taken
	send := func() error {
		select {
		case s.batches <- batch:
			batch, before = before[:0], batch
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	text := clickhouse.QuoteText
	statement := fmt.Sprintf(stateRows, int64(never), text(q.account), text(s.store), q.rows)
	selection := clickhouse.Selection{Statement: statement, Columns: c.results()}
	err := db.SelectColumns(ctx, selection, func(rows int) error {
		c.items = string(c.item.Buf) // once, and not for each row
		for i := range rows {
			if !m.isOf(&c, i) {
				if m.rows > 0 {
					batch = append(batch, m.result(s.store))
				}
				m.begin(&c, i)
				if space := c.space.RowBytes(i); string(space) != m.space {
					m.space = string(space)
				}
			}
			m.add(&c, i)
		}
		return send()
	})
	if err == nil && m.rows > 0 {
		batch = append(batch, m.result(s.store))
		err = send()
	}
	if err != nil {
		return clickhouse.Classify(fmt.Errorf("read the state of store %s/%s: %w", q.account, s.store, err))
	}
	return nil
}

// isOf reports whether a row is of the same copy as the rows before.
func (m *mergedCopy) isOf(c *stateColumns, row int) bool {
	return m.rows > 0 && string(c.item.RowBytes(row)) == m.item && string(c.space.RowBytes(row)) == m.space
}

// begin begins the copy of a row.
func (m *mergedCopy) begin(c *stateColumns, row int) {
	at := c.item.Pos[row]
	m.item = c.items[at.Start:at.End]
	m.written, m.gone, m.writtenBy, m.inferred = proto.UInt128{}, proto.UInt128{}, [16]byte{}, false
	m.rows, m.digests, m.text = 0, m.digests[:0], m.text[:0]
}

// add adds a row.
func (m *mergedCopy) add(c *stateColumns, row int) {
	m.rows++
	if newer(c.written[row], m.written) {
		m.written, m.writtenBy, m.size, m.sourceTime = c.written[row], c.writtenBy[row], c.size[row], never
		if len(c.sourceTime) > 0 {
			m.sourceTime, m.ns, m.of = c.sourceTime[row], c.ns[row], c.of[row]
		}
	}
	if newer(c.gone[row], m.gone) {
		m.gone, m.inferred = c.gone[row], c.inferred[row] != 0
		if len(c.goneNS) > 0 {
			m.goneNS, m.goneOf = c.goneNS[row], c.goneOf[row]
		}
	}
	first := 0
	if row > 0 {
		first = int(c.digests.Offsets[row-1])
	}
	for i := first; i < int(c.digests.Offsets[row]); i++ {
		m.digests = append(m.digests, storedDigest{m.keep(c.algorithms.RowBytes(i)), m.keep(c.values.RowBytes(i))})
	}
}

// keep returns a copy of b in text.
func (m *mergedCopy) keep(b []byte) []byte {
	n := len(m.text)
	m.text = append(m.text, b...)
	return m.text[n:]
}

// result returns the merged copy.
func (m *mergedCopy) result(store string) keyedCopy {
	k := keyedCopy{m.space, m.item, StoredCopy{Store: store}}
	c := &k.copy
	if !newer(m.written, m.gone) {
		c.Time, c.Inferred = timeOf(m.gone), m.inferred
		c.Disputed = m.written != (proto.UInt128{}) && (m.goneOf == 0 || m.goneOf != m.of) &&
			timeOf(m.written).Add(time.Duration(m.ns)).After(c.Time.Add(time.Duration(m.goneNS)))
		return k
	}
	c.Live, c.Size, c.Time = true, m.size, timeOf(m.written)
	if m.sourceTime != never {
		c.SourceTime = time.UnixMilli(m.sourceTime).UTC()
	}
	c.Digests = m.currentDigests()
	return k
}

// timeOf returns the time of a version.
func timeOf(ver proto.UInt128) time.Time {
	return time.UnixMilli(int64(ver.High>>19) - version.Shift).UTC()
}

// currentDigests returns the digests of the newest content as text: the verified ones, if there are any. Of the values
// of an algorithm, the greatest one counts, as in the table.
func (m *mergedCopy) currentDigests() string {
	if m.rows > 1 { // the algorithms of a row are sorted, and each is there once
		slices.SortFunc(m.digests, func(a, b storedDigest) int {
			return cmp.Or(bytes.Compare(a.algorithm, b.algorithm), bytes.Compare(b.value, a.value))
		})
		m.digests = slices.CompactFunc(m.digests, func(a, b storedDigest) bool {
			return bytes.Equal(a.algorithm, b.algorithm)
		})
	}
	claims, mark := 0, []byte(version.ClaimMark)
	m.digests = slices.DeleteFunc(m.digests, func(d storedDigest) bool {
		current := len(d.value) > version.DigestAt && [16]byte(d.value[version.ChangeAt:version.DigestAt]) == m.writtenBy
		if current && bytes.HasSuffix(d.algorithm, mark) {
			claims++
		}
		return !current
	})
	m.hex = m.hex[:0]
	for _, d := range m.digests {
		algorithm, isClaim := bytes.CutSuffix(d.algorithm, mark)
		if isClaim && claims < len(m.digests) {
			continue
		}
		if len(m.hex) > 0 {
			m.hex = append(m.hex, ' ')
		}
		m.hex = append(append(m.hex, algorithm...), ':')
		m.hex = hex.AppendEncode(m.hex, d.value[version.DigestAt:])
	}
	return string(m.hex)
}
