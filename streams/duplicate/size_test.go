package duplicate

import (
	"reflect"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Checks have the size of their item, and those of large items have a topic of their own, whatever the command has.
func TestSizeOfChecks(t *testing.T) {
	type asked struct {
		topic    schemas.Topic
		store    string
		priority pb.Priority
		bytes    int64
	}
	const high, large = pb.Priority_PRIORITY_HIGH, pb.Priority_PRIORITY_LARGE
	suspect := func(w *world) *pb.DuplicationCommand {
		c := command(w.added("1", "hello"))
		w.mem["1"].Corrupt("photos", "a.jpg", []byte("hellO"))
		return c
	}
	for name, tt := range map[string]struct {
		large int64
		setUp func(*world) *pb.DuplicationCommand
		want  []asked
	}{
		"suspect, small": {6, suspect, []asked{{schemas.FixityHigh, "1", high, 5}}},
		"suspect, large": {5, suspect, []asked{{schemas.FixityLarge, "1", large, 5}}},
		"suspect, never": {0, suspect, []asked{{schemas.FixityHigh, "1", high, 5}}},
		"repair of what is no longer what failed": {6, func(w *world) *pb.DuplicationCommand {
			c := suspect(w)
			w.put("2", "a longer text")
			return w.repair(c.GetDigests())
		}, []asked{{schemas.FixityLarge, "2", large, 13}}},
		"copied, large, by a command that knows nothing": {5, func(w *world) *pb.DuplicationCommand {
			w.added("1", "hello")
			return manual()
		}, []asked{{schemas.FixityLarge, "2", large, 5}}},
		"copied, small": {6, func(w *world) *pb.DuplicationCommand {
			return command(w.added("1", "hello"))
		}, []asked{{schemas.FixityHigh, "2", high, 5}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.executor.cfg.Large = tt.large
			var got []asked
			done := w.mustRun(tt.setUp(w))
			for _, topic := range []schemas.Topic{schemas.FixityHigh, schemas.FixityLow, schemas.FixityLarge} {
				for _, task := range done.tasks[topic] {
					got = append(got, asked{topic, task.GetStore(), task.GetPriority(),
						max(task.GetSize(), task.GetKnown().GetManifest().GetSize())})
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
