package hint

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

func TestDecide(t *testing.T) {
	now := at(t, "2026-05-04T10:00:00Z")
	eventTime := now.Add(-3 * time.Second).Add(250 * time.Millisecond)
	modified := now.Add(-time.Minute)
	c := schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: "a"}
	object := storage.Object{Item: "a", Size: 5, Modified: modified, Version: "v1", ETag: `"e1"`,
		Digests:    digest.Set{"md5": "5d41402abc4b2a76b9719d911017c592"},
		Properties: storage.Properties{MediaType: "image/jpeg", User: map[string]string{"title": "x"}}}
	hint := func(k Kind, etag string) Hint {
		return Hint{Kind: k, Vendor: "minio", Event: "E", Time: eventTime, ETag: etag, Sequence: "17", User: "ann"}
	}
	present := Observation{Present: true, Object: object,
		Resolution: time.Second, Settle: time.Minute, Received: now, Now: now}
	absent := Observation{Resolution: time.Second, Received: now.Add(time.Millisecond), Now: now}
	fine := absent
	fine.Resolution = time.Nanosecond
	add := func(sequence, user string) *pb.Change {
		return &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "2", Space: "photos", Item: "a", Version: "v1",
			Etag: `"e1"`, Size: 5,
			Digests: object.Digests, Provenance: pb.Provenance_PROVENANCE_VERIFIED, MediaType: "image/jpeg",
			Properties: object.Properties.User,
			Time:       timestamppb.New(modified), Sequence: sequence, User: user, Agent: "notification/minio",
			Origin:   pb.Origin_ORIGIN_NOTIFICATION,
			Evidence: map[string]string{"event": "E", "event_time": "2026-05-04T09:59:57.25Z"}}
	}
	gone := func(when time.Time) *pb.Change {
		return &pb.Change{Op: pb.Op_OP_DELETE, Account: "acme", Store: "2", Space: "photos", Item: "a",
			Time:        timestamppb.New(when),
			SizeUnknown: true, Sequence: "17", User: "ann", Agent: "notification/minio", Origin: pb.Origin_ORIGIN_NOTIFICATION,
			Evidence: map[string]string{"event": "E", "event_time": "2026-05-04T09:59:57.25Z"}}
	}
	lost, addLost := present, add("17", "ann")
	lost.Object.Properties, lost.Object.PropertiesUnknown = storage.Properties{}, true
	addLost.MediaType, addLost.Properties, addLost.PropertiesUnknown = "", nil, true
	whole := hint(Removed, "")
	whole.Time = eventTime.Truncate(time.Second)
	wholeGone := gone(whole.Time.Add(999 * time.Millisecond))
	wholeGone.Evidence["event_time"] = "2026-05-04T09:59:57Z"
	untimed := hint(Removed, "")
	untimed.Time = time.Time{}
	untimedGone := gone(absent.Received)
	untimedGone.Evidence = map[string]string{"event": "E"}
	dated := func(s Observation, at time.Time) Observation { s.Object.Modified = at; return s }
	addOf := func(when, modified time.Time, sequence, user string) *pb.Change {
		ch := add(sequence, user)
		ch.Time, ch.Modified = timestamppb.New(when.Truncate(time.Millisecond)), timestamppb.New(modified)
		return ch
	}
	moved := hint(Created, "")
	moved.Time = time.Time{}
	movedAdd := addOf(now, now.AddDate(-6, 0, 0), "17", "ann")
	movedAdd.Evidence = untimedGone.Evidence
	early, late := time.Date(1965, 7, 13, 1, 2, 3, 0, time.UTC), time.Date(2446, 5, 1, 0, 0, 0, 0, time.UTC)

	tomorrow := hint(Removed, "") // Kafka's time orders it
	tomorrow.Time = now.Add(24 * time.Hour)
	tomorrowGone := gone(tomorrow.Time)
	tomorrowGone.Evidence["event_time"] = tomorrow.Time.Format(time.RFC3339Nano)

	for name, tt := range map[string]struct {
		hint Hint
		seen Observation
		row  Row
		want *pb.Change
	}{
		"irrelevant":                             {hint(Irrelevant, "e1"), Observation{}, rowIrrelevant, nil},
		"created, present, that content":         {hint(Created, "e1"), present, rowCurrent, add("17", "ann")},
		"created, present, properties not known": {hint(Created, "e1"), lost, rowCurrent, addLost},
		"created, present, not comparable":       {hint(Created, ""), present, rowCurrent, add("17", "ann")},
		"created, present, another content":      {hint(Created, "e2"), present, rowReplaced, add("", "")},
		"created, absent":                        {hint(Created, "e1"), absent, rowAbsent, nil},
		"other, present":                         {hint(Other, "e1"), present, rowOther, add("", "")},
		"other, absent":                          {hint(Other, "e1"), absent, rowAbsent, nil},
		"removed, present":                       {hint(Removed, "e1"), present, rowStillPresent, add("", "")},
		"removed, absent, times of seconds": {hint(Removed, "e1"), absent, rowRemoved,
			gone(eventTime.Truncate(time.Second))},
		"removed, absent, fine times":                   {hint(Removed, "e1"), fine, rowRemoved, gone(eventTime)},
		"removed, absent, time in seconds, finer store": {whole, fine, rowRemoved, wholeGone},
		"removed, absent, of tomorrow":                  {tomorrow, absent, rowRemoved, tomorrowGone},
		"removed, absent, no time":                      {untimed, absent, rowRemoved, untimedGone},
		"created, of an old date": {hint(Created, "e1"), dated(present, now.AddDate(-6, 0, 0)), rowCurrent,
			addOf(eventTime, now.AddDate(-6, 0, 0), "17", "ann")},
		"created, of an old date, no time": {moved, dated(present, now.AddDate(-6, 0, 0)), rowCurrent, movedAdd},
		"created, of 1965": {hint(Created, "e1"), dated(present, early), rowCurrent,
			addOf(eventTime, early, "17", "ann")},
		"created, dated ahead": {hint(Created, "e1"), dated(present, late), rowCurrent,
			addOf(eventTime, late, "17", "ann")},
		"another content, of 1965": {hint(Created, "e2"), dated(present, early), rowReplaced,
			addOf(time.Unix(0, 0).UTC(), early, "", "")},
		"another content, dated ahead": {hint(Created, "e2"), dated(present, late), rowReplaced, addOf(now, late, "", "")},
		"other, of an old date": {hint(Other, "e1"), dated(present, now.AddDate(-6, 0, 0)), rowOther,
			redated(add("", ""), now.AddDate(-6, 0, 0))},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.want != nil {
				tt.want.Id = schemas.ChangeID(tt.want)
			}
			got := Decide(c, tt.hint, tt.seen)
			if got.Row != tt.row || !proto.Equal(got.Change, tt.want) {
				t.Errorf("got  %s %v\nwant %s %v", got.Row, got.Change, tt.row, tt.want)
			}
		})
	}
}

func redated(c *pb.Change, at time.Time) *pb.Change { c.Time = timestamppb.New(at); return c }
