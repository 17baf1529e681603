package emit

import (
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/storage"
)

func TestJudge(t *testing.T) {
	const md5a, md5b = "0cc175b9c0f1b6a831c399e269772661", "92eb5ffee6ae2fec3ad71c777531578f"
	item := func(version, md5, media string) *pb.Change {
		return &pb.Change{Item: "i", Version: version, Size: 1, Digests: map[string]string{"md5": md5}, MediaType: media}
	}
	space := func(v string) *pb.Change { return &pb.Change{Properties: map[string]string{"k": v}} }
	upper := &pb.Change{Item: "i", Version: "1", Properties: map[string]string{"K": "v"}}
	one, two, bare := item("1", md5a, ""), item("2", md5b, ""), &pb.Change{Item: "i", Version: "2", Size: 1}
	cameA, cameB := &Content{digest.Set{"md5": md5a}, 1}, &Content{digest.Set{"md5": md5b}, 1}
	longer := &Content{digest.Set{"md5": md5b}, 2}
	// Of a store whose versions are ETags: one, and the same bytes at another time, with other properties, at no time.
	at := func(c *pb.Change, sec int64) *pb.Change {
		c.Time = record.Time(time.Unix(sec, 0))
		return c
	}
	oneAt, anew, other := at(item("1", md5a, ""), 5), at(item("1", md5a, ""), 6), at(item("1", md5a, "b"), 5)
	named := record.Content(schemas.Copy{Item: "i"}, storage.Object{Item: "i", Version: "1", Size: -1, PropertiesUnknown: true}) // in a condition
	lost := func(c *pb.Change) *pb.Change {                                                                                      // its properties cannot be told
		c = c.CloneVT()
		c.MediaType, c.Properties, c.PropertiesUnknown = "", nil, true
		return c
	}
	const put, del, set = pb.Op_OP_UPDATE, pb.Op_OP_DELETE, pb.Op_OP_SET_PROPERTIES
	const create, gone, acl = pb.Op_OP_CREATE_SPACE, pb.Op_OP_DELETE_SPACE, pb.Op_OP_SET_ACL
	tests := map[string]struct {
		op        pb.Op
		draft     *pb.Change
		was, seen *pb.Change
		came      *Content
		crowded   bool
		etags     bool // versions are not unique
		want      verdict
	}{
		"put, nothing there":                      {op: put, want: notDone},
		"put, nothing there, not alone":           {op: put, crowded: true, want: undecided},
		"put, what came is there":                 {op: put, came: cameA, seen: one, want: done},
		"put, what came is there, not alone":      {op: put, came: cameA, seen: one, crowded: true, want: done},
		"put, what came replaced what was":        {op: put, was: one, came: cameB, seen: two, want: done},
		"put, what was is there":                  {op: put, was: one, came: cameB, seen: one, want: notDone},
		"put, what was, of the same bytes":        {op: put, was: one, came: cameA, seen: one, want: notDone},
		"put, what was is there, not alone":       {op: put, was: one, came: cameB, seen: one, crowded: true, want: notDone},
		"put, other bytes are there":              {op: put, was: one, came: cameA, seen: two, want: undecided},
		"put, other length":                       {op: put, was: one, came: longer, seen: two, want: undecided},
		"put, nobody knows what came":             {op: put, was: one, seen: two, want: undecided},
		"put, nothing to compare":                 {op: put, was: one, came: cameB, seen: bare, want: undecided},
		"put, what was is gone":                   {op: put, was: one, came: cameB, want: undecided},
		"ETags: put, as it was":                   {etags: true, op: put, was: oneAt, came: cameA, seen: oneAt, want: notDone},
		"ETags: put, as it was, others came":      {etags: true, op: put, was: oneAt, came: cameB, seen: oneAt, want: notDone},
		"ETags: put, as it was, none came":        {etags: true, op: put, was: oneAt, seen: oneAt, want: notDone},
		"ETags: put, as it was, not alone":        {etags: true, op: put, was: oneAt, came: cameB, seen: oneAt, crowded: true, want: undecided},
		"ETags: put, later":                       {etags: true, op: put, was: oneAt, came: cameA, seen: anew, want: done},
		"ETags: put, later, not alone":            {etags: true, op: put, was: oneAt, came: cameA, seen: anew, crowded: true, want: done},
		"ETags: put, later, others came":          {etags: true, op: put, was: oneAt, came: cameB, seen: anew, want: undecided},
		"ETags: put, later, who knows":            {etags: true, op: put, was: oneAt, seen: anew, want: undecided},
		"ETags: put, other properties":            {etags: true, op: put, was: oneAt, came: cameA, seen: other, want: done},
		"ETags: put, properties were lost":        {etags: true, op: put, was: other, came: cameA, seen: lost(other), want: undecided},
		"ETags: put, no time before":              {etags: true, op: put, was: named, came: cameA, seen: anew, want: undecided},
		"ETags: put, no time at all":              {etags: true, op: put, was: one, came: cameA, seen: one, want: undecided},
		"ETags: put, no time, others came":        {etags: true, op: put, was: named, came: cameB, seen: anew, want: notDone},
		"ETags: put, no time, who knows":          {etags: true, op: put, was: named, seen: anew, want: undecided},
		"ETags: put, no time, not alone":          {etags: true, op: put, was: named, came: cameB, seen: anew, crowded: true, want: undecided},
		"ETags: put, other bytes":                 {etags: true, op: put, was: named, came: cameB, seen: at(item("2", md5b, ""), 6), want: done},
		"ETags: put where nothing was":            {etags: true, op: put, came: cameA, seen: anew, want: done},
		"ETags: delete, there":                    {etags: true, op: del, was: oneAt, seen: oneAt, want: notDone},
		"ETags: delete, there, not alone":         {etags: true, op: del, was: oneAt, seen: oneAt, crowded: true, want: undecided},
		"ETags: delete, put anew":                 {etags: true, op: del, was: oneAt, seen: anew, want: undecided},
		"ETags: delete, no time":                  {etags: true, op: del, was: one, seen: one, want: undecided},
		"ETags: delete, gone":                     {etags: true, op: del, was: oneAt, want: done},
		"ETags: properties, written anew":         {etags: true, op: set, draft: item("", "", "b"), was: oneAt, seen: at(item("1", md5a, "b"), 6), want: done},
		"ETags: properties, the same anew":        {etags: true, op: set, draft: item("", "", ""), was: oneAt, seen: anew, want: done},
		"ETags: properties, not set":              {etags: true, op: set, draft: item("", "", "b"), was: oneAt, seen: oneAt, want: notDone},
		"ETags: properties, as they were":         {etags: true, op: set, draft: item("", "", "b"), was: other, seen: other, want: undecided},
		"ETags: properties, no time":              {etags: true, op: set, draft: item("", "", "b"), was: item("1", md5a, "b"), seen: item("1", md5a, "b"), want: undecided},
		"delete, gone":                            {op: del, was: one, want: done},
		"delete, gone, not alone":                 {op: del, was: one, crowded: true, want: undecided},
		"delete, there":                           {op: del, was: one, seen: one, want: notDone},
		"delete, there, not alone":                {op: del, was: one, seen: one, crowded: true, want: notDone},
		"delete, another is there":                {op: del, was: one, seen: two, want: undecided},
		"delete of nothing":                       {op: del, want: notDone},
		"delete of nothing, something there":      {op: del, seen: one, want: notDone},
		"delete of nothing, not alone":            {op: del, crowded: true, want: undecided},
		"properties, set":                         {op: set, draft: item("", "", "b"), was: one, seen: item("1", md5a, "b"), want: done},
		"properties, set, not alone":              {op: set, draft: item("", "", "b"), was: one, seen: item("1", md5a, "b"), crowded: true, want: undecided},
		"properties, set by another version":      {op: set, draft: item("", "", "b"), was: one, seen: item("2", md5a, "b"), want: done},
		"properties, not set":                     {op: set, draft: item("", "", "b"), was: one, seen: one, want: notDone},
		"properties, as they were":                {op: set, draft: item("", "", "b"), was: item("1", md5a, "b"), seen: item("1", md5a, "b"), want: undecided},
		"properties, others":                      {op: set, draft: item("", "", "b"), was: one, seen: item("1", md5a, "c"), want: undecided},
		"properties, other bytes":                 {op: set, draft: item("", "", "b"), was: one, seen: item("2", md5b, "b"), want: undecided},
		"properties, gone":                        {op: set, draft: item("", "", "b"), was: one, want: undecided},
		"properties of nothing":                   {op: set, draft: item("", "", "b"), want: notDone},
		"properties, names have no case here":     {op: set, draft: upper, was: &pb.Change{Item: "i", Version: "1"}, seen: &pb.Change{Item: "i", Version: "1", Properties: map[string]string{"k": "v"}}, want: done},
		"properties, lost before, set":            {op: set, draft: item("", "", "b"), was: lost(one), seen: item("1", md5a, "b"), want: done},
		"properties, lost before, set to none":    {op: set, draft: item("", "", ""), was: lost(one), seen: one, want: done},
		"properties, lost before and now":         {op: set, draft: item("", "", "b"), was: lost(one), seen: lost(one), want: notDone},
		"properties to none, lost before and now": {op: set, draft: item("", "", ""), was: lost(one), seen: lost(one), want: notDone},
		"properties, lost before, others now":     {op: set, draft: item("", "", "b"), was: lost(one), seen: one, want: undecided},
		"properties to none, lost since":          {op: set, draft: item("", "", ""), was: item("1", md5a, "b"), seen: lost(one), want: undecided},
		"space created":                           {op: create, draft: space("1"), seen: space("1"), want: done},
		"space created, not alone":                {op: create, draft: space("1"), seen: space("1"), crowded: true, want: undecided},
		"space not created":                       {op: create, draft: space("1"), want: notDone},
		"space was there":                         {op: create, draft: space("1"), was: space("1"), seen: space("1"), want: notDone},
		"space created otherwise":                 {op: create, draft: space("1"), seen: space("2"), want: undecided},
		"space deleted":                           {op: gone, was: space("1"), want: done},
		"space deleted, not alone":                {op: gone, was: space("1"), crowded: true, want: undecided},
		"space not deleted":                       {op: gone, was: space("1"), seen: space("1"), want: notDone},
		"space was not there":                     {op: gone, want: notDone},
		"space set":                               {op: acl, draft: space("2"), was: space("1"), seen: space("2"), want: done},
		"space not set":                           {op: acl, draft: space("2"), was: space("1"), seen: space("1"), want: notDone},
		"space as it was":                         {op: acl, draft: space("1"), was: space("1"), seen: space("1"), want: undecided},
		"space set otherwise":                     {op: acl, draft: space("2"), was: space("1"), seen: space("3"), want: undecided},
		"space gone":                              {op: acl, draft: space("2"), was: space("1"), want: undecided},
		"something else":                          {op: pb.Op_OP_READ, want: undecided},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			draft := &pb.Change{}
			if tt.draft != nil {
				draft = tt.draft.CloneVT()
			}
			draft.Op = tt.op
			can := storage.Capabilities{UniqueVersions: !tt.etags, FoldsPropertyCase: tt.draft == upper}
			got := judge(Intent{Draft: draft, Before: tt.was, Concurrent: tt.crowded}, tt.came, tt.seen, can)
			if got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
