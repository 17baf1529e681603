package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// kindRemoved is the kind of the incident that is opened when records were removed before a group read them.
const kindRemoved = "records-removed"

// outOfRangeTimeout bounds finding the cause of an out-of-range error and opening the incidents.
const outOfRangeTimeout = 30 * time.Second

// errRemoved is wrapped by the error of Run if records were removed before they were read.
var errRemoved = errors.New("records were removed before they were read")

// A groupPosition holds the offsets of a group in one partition, and the offsets in its log.
type groupPosition struct {
	at         core.Partition
	group      string
	position   int64 // next offset that this member would read; -1: unknown
	committed  int64 // offset committed by the group; -1: none
	start, end int64 // log start and end offsets
	divergesAt int64 // offset at which the log differs from the one that the group has committed in; -1: unknown
}

// An outOfRangeCause says why an offset is out of range.
type outOfRangeCause uint8

const (
	causeRemoved    outOfRangeCause = iota // records that the group has not read were removed from the log start
	causeTruncated                         // the log lost records at its end, and may hold others there now
	causeSuperseded                        // another member has read on and committed, and the records were trimmed
)

// cause returns why the broker reported the position as out of range.
func (s groupPosition) cause() outOfRangeCause {
	at := s.position
	if at < 0 {
		at = max(s.committed, 0)
	}
	switch {
	case at >= s.start:
		return causeTruncated
	case s.committed >= s.start:
		return causeSuperseded
	}
	return causeRemoved
}

// lost returns the number of removed records that the group has not read.
func (s groupPosition) lost() int64 { return s.start - max(s.position, s.committed, 0) }

// error describes the cause and the remedy.
func (s groupPosition) error(brokers []string) error {
	where := fmt.Sprintf("group %s has committed offset %d of topic %s, partition %d",
		s.group, s.committed, s.at.Topic, s.at.ID)
	if s.committed < 0 {
		where = fmt.Sprintf("group %s has committed nothing of topic %s, partition %d", s.group, s.at.Topic, s.at.ID)
	}
	reset := func(to string) string { return resetGroup(brokers, s.group, s.at, to) }
	switch s.cause() {
	case causeRemoved:
		return fmt.Errorf("%s, but the log starts at %d: %w, %d of them. "+
			"Find out what removed them (retention, DeleteRecords, a recreated topic); to continue without them, %s",
			where, s.start, errRemoved, s.lost(), reset("--to-earliest"))
	case causeSuperseded:
		return fmt.Errorf("%s, but this process was only at %d: other members have continued meanwhile. "+
			"Restart it", where, s.position)
	}
	where = fmt.Sprintf("%s, and its next offset to read is %d, "+
		"but the log is from %d to %d: the broker lost records at its end", where, s.position, s.start, s.end)
	// Records that a new leader has written after the divergence are unread, and so are those written until the reset.
	end := s.end
	if s.divergesAt >= 0 {
		end = min(end, s.divergesAt)
	}
	switch {
	case s.committed > end:
		return fmt.Errorf("%s, unless the topic was deleted and recreated. To continue with the remaining records, %s. "+
			"If the topic was recreated, use --to-earliest, or records of the new one are skipped",
			where, reset(fmt.Sprintf("--to-offset %d", end)))
	case s.committed < 0:
		return fmt.Errorf("%s. To read all records of the log, %s", where, reset("--to-earliest"))
	}
	return fmt.Errorf("%s. The committed offset is in it. Restart the process", where)
}

// incident returns the incident of removed records. It has no item: its subject is the group and the partition.
// Its id is a function of the group, the partition and the offsets, so the same loss has the same id.
func (s groupPosition) incident(role schemas.Role, detail string) *pb.Incident {
	now := timestamppb.Now()
	i := &pb.Incident{
		Account: "-", Kind: kindRemoved, Subject: fmt.Sprintf("%s %s %d", s.group, s.at.Topic, s.at.ID),
		State: pb.IncidentState_INCIDENT_STATE_OPEN, Opened: now, Updated: now, StepCount: 1,
		Steps: []*pb.IncidentStep{{Time: now, Action: "opened", By: string(role), Detail: detail}},
	}
	i.Id = schemas.ID("incident",
		schemas.IncidentKey(i), strconv.FormatInt(s.committed, 10), strconv.FormatInt(s.start, 10))
	return i
}

// An outOfRangeDiagnosis finds out why offsets of a group are out of range, and opens incidents for lost records.
type outOfRangeDiagnosis struct {
	*core.Router
	// removed, if set, returns messages about the records from offset from to to. They are published before the
	// incident that refers to them.
	removed func(ctx context.Context, topic schemas.Topic, partition int32, from, to int64) ([]schemas.Message, error)
}

// explain returns err. If err says that offsets are out of range, it returns an error with the cause
// and the remedy instead, and opens an incident for removed records. cl is the member whose poll failed.
func (r outOfRangeDiagnosis) explain(ctx context.Context, cl *kgo.Client, err error) error {
	var out *core.OutOfRangeError
	if !errors.As(err, &out) {
		return err
	}
	truncated, err := r.diagnose(ctx, cl, out)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range truncated {
		errs = append(errs, s.error(r.Config.Brokers))
	}
	return errors.Join(errs...)
}

// diagnose finds out why offsets are out of range. If truncated logs are the only cause, it returns
// them, and no error.
func (r outOfRangeDiagnosis) diagnose(
	ctx context.Context, cl *kgo.Client, out *core.OutOfRangeError,
) (truncated []groupPosition, err error) {
	ctx, cancel := context.WithTimeout(ctx, outOfRangeTimeout)
	defer cancel()
	all, err := r.groupPositions(ctx, cl, out.Partitions)
	if err != nil {
		return nil, errors.Join(out, fmt.Errorf("find the cause: %w", err))
	}
	var errs []error
	var open []groupPosition
	for _, s := range all {
		switch s.cause() {
		case causeTruncated:
			truncated = append(truncated, s)
			continue
		case causeRemoved:
			open = append(open, s)
		}
		errs = append(errs, s.error(r.Config.Brokers))
	}
	if len(open) > 0 {
		if err := r.openIncidents(ctx, open); err != nil {
			errs = append(errs, fmt.Errorf("open incident: %w", err))
		}
	}
	return truncated, errors.Join(errs...)
}

// groupPositions returns the positions of the group of cl in parts.
func (r outOfRangeDiagnosis) groupPositions(
	ctx context.Context, cl *kgo.Client, parts []core.Partition,
) ([]groupPosition, error) {
	var topics []string
	for _, p := range parts {
		if !slices.Contains(topics, p.Topic) {
			topics = append(topics, p.Topic)
		}
	}
	group, _ := cl.OptValue(kgo.ConsumerGroup).(string)
	adm := kadm.NewClient(cl)
	commits, err := adm.FetchOffsetsForTopics(ctx, group, topics...)
	if err != nil {
		return nil, fmt.Errorf("fetch offsets of group %s: %w", group, err)
	}
	starts, ends, err := core.Bounds(ctx, adm, topics...)
	if err != nil {
		return nil, err
	}
	same := r.divergencePoints(ctx, adm, commits, parts)
	read, known := cl.UncommittedOffsets(), cl.CommittedOffsets()
	var all []groupPosition
	for _, p := range parts {
		s := groupPosition{at: p, group: group, position: -1, committed: -1,
			start: starts[p.Topic][p.ID], end: ends[p.Topic][p.ID],
			divergesAt: -1}
		if at, ok := same[p]; ok {
			s.divergesAt = at
		}
		if c, ok := commits.Lookup(p.Topic, p.ID); ok && c.Err != nil {
			return nil, fmt.Errorf("fetch offsets of group %s: %s: %w", group, p, c.Err)
		} else if ok {
			s.committed = c.At
		}
		if at, ok := known[p.Topic][p.ID]; ok {
			s.position = at.Offset
		}
		if at, ok := read[p.Topic][p.ID]; ok {
			s.position = at.Offset
		}
		all = append(all, s)
	}
	return all, nil
}

// divergencePoints returns the offsets at which the logs of parts differ from those that the commits were made
// in, by leader epoch. Partitions for which the brokers do not say are left out.
func (r outOfRangeDiagnosis) divergencePoints(
	ctx context.Context, adm *kadm.Client, commits kadm.OffsetResponses, parts []core.Partition,
) map[core.Partition]int64 {
	var epochs kadm.OffsetForLeaderEpochRequest
	for _, p := range parts {
		if c, ok := commits.Lookup(p.Topic, p.ID); ok && c.Err == nil && c.At >= 0 && c.LeaderEpoch >= 0 {
			epochs.Add(p.Topic, p.ID, c.LeaderEpoch)
		}
	}
	if len(epochs) == 0 {
		return nil
	}
	ends, err := adm.OffsetForLeaderEpoch(ctx, epochs)
	if err != nil {
		r.Log.Warn("skip check where logs were truncated", "err", err)
	}
	same := map[core.Partition]int64{}
	for topic, ps := range ends {
		for id, e := range ps {
			if e.Err == nil && e.LeaderEpoch >= 0 {
				same[core.Partition{Topic: topic, ID: id}] = e.EndOffset
			}
		}
	}
	return same
}

// openIncidents publishes an incident for each position with removed records. It leaves out incidents that are
// open already, so a process that restarts in a loop opens each once; if those cannot be read, an incident may be
// published twice. The messages of r.removed are published first, since the incident refers to them.
func (r outOfRangeDiagnosis) openIncidents(ctx context.Context, of []groupPosition) error {
	known := map[string]bool{}
	if err := r.knownIncidents(ctx, known); err != nil {
		r.Log.Warn("may open incidents twice", "err", err)
	}
	cl, err := r.Config.NewClient("incidents", r.Config.ProduceOptions(core.ProducerTimeout, core.ProducerLinger)...)
	if err != nil {
		return err
	}
	defer cl.Close()
	var lost, incidents []schemas.Message
	for _, s := range of {
		i := s.incident(r.Role, s.error(r.Config.Brokers).Error())
		if known[i.GetId()] {
			continue
		}
		incidents = append(incidents, schemas.Message{Topic: schemas.Incidents, Body: i})
		if r.removed != nil {
			more, err := r.removed(ctx, r.Config.SchemaTopic(s.at.Topic), s.at.ID, s.start-s.lost(), s.start)
			if err != nil {
				return err
			}
			lost = append(lost, more...)
		}
	}
	for _, msgs := range [][]schemas.Message{lost, incidents} {
		var recs []*kgo.Record
		for _, m := range msgs {
			rec, err := r.Encode(m, time.Now())
			if err != nil {
				return err
			}
			recs = append(recs, rec)
		}
		if _, err := core.Publish(ctx, cl, recs); err != nil {
			return err
		}
	}
	return nil
}

// knownIncidents adds the ids of all incidents of removed records to known. It takes at most a third of
// outOfRangeTimeout.
func (r outOfRangeDiagnosis) knownIncidents(ctx context.Context, known map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, outOfRangeTimeout/3)
	defer cancel()
	name := r.Config.Topic(schemas.Incidents)
	cl, err := r.Config.NewClient("incidents")
	if err != nil {
		return err
	}
	defer cl.Close()
	parts, err := core.TopicRanges(ctx, kadm.NewClient(cl), name)
	if err != nil {
		return err
	}
	return core.Scan(ctx, r.Config, name, parts, func(rec *kgo.Record, _ uint32) error {
		if !strings.Contains(string(rec.Key), "/"+kindRemoved) {
			return nil
		}
		if body, err := schemas.Decode(schemas.Incidents, core.HeadersOf(rec), rec.Value); err == nil {
			known[body.GetId()] = true
		}
		return nil
	})
}
