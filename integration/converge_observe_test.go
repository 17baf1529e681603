package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/storage"
)

// observe reads the stores and the records.
func (w *convergeWorld) observe(t *testing.T) converge.Observation {
	t.Helper()
	s := converge.Observation{Copies: map[converge.Copy]converge.Content{}, Records: map[converge.Copy]converge.Record{}}
	for space, rule := range convergeRules() {
		stores := []string{sourceStore}
		for _, p := range rule.Pairs {
			stores = append(stores, p.To)
		}
		for _, store := range stores {
			w.copies(t, s, store, space)
		}
		w.entries(t, &s, space)
		w.records(t, s, stores, space)
	}
	s.Incidents, s.DeadLetters = w.incidents(t), w.deadLetters(t)
	return s
}

// incidents reads all incidents that were ever opened, those of a key in order.
func (w *convergeWorld) incidents(t *testing.T) (all []converge.Incident) {
	t.Helper()
	e, err := w.admin.Extent(t.Context(), schemas.Incidents)
	must(t, err)
	at, last := map[string]int{}, map[string]int{} // by id, and by key, the index in all
	err = w.admin.Read(t.Context(), schemas.Incidents, e, func(d *schemas.Delivery, unreadable error) error {
		i, ok := d.Body.(*pb.Incident)
		if !ok {
			return unreadable
		}
		key := schemas.IncidentKey(i)
		n, known := at[i.GetId()]
		if !known {
			before, again := last[key]
			n = len(all)
			at[i.GetId()], last[key] = n, n
			all = append(all, converge.Incident{Copy: copyAt(i), Kind: i.GetKind(), Subject: i.GetSubject(), ID: i.GetId(),
				Duplicate: again && all[before].Open})
		}
		all[n].Open, all[n].Reasons = i.GetState() != pb.IncidentState_INCIDENT_STATE_CLOSED, nil
		all[n].AwaitsApproval = i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
		for _, s := range i.GetSteps() {
			if s.GetBy() != "" {
				all[n].Reasons = append(all[n].Reasons, s.GetDetail())
			}
		}
		return nil
	})
	must(t, err)
	return all
}

// deadLetters reads all dead letters ever written.
func (w *convergeWorld) deadLetters(t *testing.T) (all []converge.DeadLetter) {
	t.Helper()
	err := w.dead.Each(t.Context(), deadletter.Query{Closed: true}, func(l *deadletter.Letter) error {
		letter := converge.DeadLetter{
			Position: fmt.Sprintf("%s/%d@%d", l.Topic, l.Partition, l.Offset),
			Died:     strings.Contains(l.Error, "processes that died"),
		}
		switch m, _ := l.Decode(); m := m.(type) { // an undecodable message belongs to no copy
		case interface {
			GetDestinationStore() string
			GetSpace() string
			GetItem() string
		}:
			_, result := m.(*pb.DuplicationResult)
			letter.Command, letter.Copy = !result, converge.Copy{Store: m.GetDestinationStore(),
				ItemRef: converge.ItemRef{Space: m.GetSpace(), Item: m.GetItem()}}
		case interface {
			GetStore() string
			GetSpace() string
			GetItem() string
		}:
			letter.Copy = copyAt(m)
		}
		all = append(all, letter)
		return nil
	})
	must(t, err)
	return all
}

func copyAt(m interface {
	GetStore() string
	GetSpace() string
	GetItem() string
}) converge.Copy {
	return converge.Copy{Store: m.GetStore(), ItemRef: converge.ItemRef{Space: m.GetSpace(), Item: m.GetItem()}}
}

// queryRetry returns the result of a ClickHouse query. It retries, because the connection may be to an engine that was
// replaced, or has exited by itself.
func queryRetry[T any](t *testing.T, e *engine, ask func() (T, error)) T {
	t.Helper()
	for tries := 1; ; tries++ {
		answer, err := ask()
		if err == nil {
			return answer
		}
		if tries == 5 {
			t.Fatal(err)
		}
		wait(t, 300*time.Millisecond)
		e.revive(t)
	}
}

// copies reads every copy of a space in a store.
func (w *convergeWorld) copies(t *testing.T, s converge.Observation, store, space string) {
	t.Helper()
	for o, err := range w.store(store).List(t.Context(), space, "") {
		if errors.Is(err, storage.ErrNoSpace) {
			return
		}
		must(t, err)
		at := converge.Copy{Store: store, ItemRef: converge.ItemRef{Space: space, Item: o.Item}}
		if o, err = w.store(store).Stat(t.Context(), space, o.Item); err != nil {
			t.Fatal(err)
		}
		sha, err := w.read(t.Context(), at)
		must(t, err)
		s.Copies[at] = converge.Content{SHA256: sha, MediaType: o.Properties.MediaType, User: o.Properties.User}
	}
}

// records reads the records of every present or past copy of a space.
func (w *convergeWorld) records(t *testing.T, s converge.Observation, stores []string, space string) {
	t.Helper()
	var all []schemas.Copy
	for _, p := range w.model.Items() {
		if p.Space == space {
			for _, store := range stores {
				all = append(all, schemas.Copy{Account: "acme", Store: store, Space: space, Item: p.Item})
			}
		}
	}
	found := queryRetry(t, w.engine, func() ([]*pb.CopyRecord, error) {
		return read.Records(t.Context(), w.app.DB(), all)
	})
	row := func(r *pb.Record) converge.Row {
		return converge.Row{Live: r.GetState() == pb.RecordState_RECORD_STATE_LIVE, SHA256: r.GetDigests()[digest.SHA256]}
	}
	for i, c := range all {
		s.Records[converge.Copy{Store: c.Store, ItemRef: converge.ItemRef{Space: c.Space, Item: c.Item}}] = converge.Record{
			Manifest: row(found[i].GetManifest()), Audit: row(found[i].GetAudit()),
		}
	}
}

// entries reads the audit log of a space.
func (w *convergeWorld) entries(t *testing.T, s *converge.Observation, space string) {
	t.Helper()
	changes := queryRetry(t, w.engine, func() (all []*pb.Change, err error) {
		parts, err := read.ChangePartitions(t.Context(), w.app.DB())
		q := read.ExportQuery{Account: "acme", Exported: map[read.ChangePartition]int64{}}
		for _, q.Range = range parts {
			page, err := read.ChangesToExport(t.Context(), w.app.DB(), q)
			if err != nil {
				return nil, err
			}
			all, q.Exported[q.Range.Partition] = append(all, page...), q.Range.To
		}
		return all, err
	})
	for _, c := range changes {
		if e, ok := auditEntry(c); ok && c.GetSpace() == space {
			s.Audit = append(s.Audit, e)
		}
	}
}

// auditEntry converts a Change of an item's content or properties to the model's type.
func auditEntry(c *pb.Change) (converge.Entry, bool) {
	e := converge.Entry{Copy: copyAt(c), User: c.GetUser(), Client: c.GetOrigin() == pb.Origin_ORIGIN_CLIENT,
		Content: converge.Content{SHA256: c.GetDigests()[digest.SHA256], MediaType: c.GetMediaType(),
			User: c.GetProperties()}}
	switch c.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		e.Kind = converge.Put
	case pb.Op_OP_DELETE:
		e.Kind = converge.Delete
	case pb.Op_OP_SET_PROPERTIES:
		e.Kind = converge.SetProperties
	default:
		return e, false
	}
	return e, true
}

// explain logs the history of an item.
func (w *convergeWorld) explain(t *testing.T, p converge.ItemRef) {
	t.Helper()
	_, out := w.millrace(t, "object", "show", "acme/"+p.Space+"/"+p.Item)
	t.Log(strings.TrimSpace(out))
}
