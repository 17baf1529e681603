package outbox

import "context"

// damagedSuffix is added to the name of a damaged segment.
const damagedSuffix = ".damaged"

// Salvage repairs the outbox in dir, and returns the Inspection from before. It keeps the readable records and renames
// the damaged segments to NAME.damaged; after a kill, call it again. A sound outbox is left unchanged.
func Salvage(ctx context.Context, dir string) (Inspection, error) {
	in, err := Inspect(ctx, dir)
	if err != nil || len(in.Damage) == 0 {
		return in, err
	}
	f, err := Open(Config{Dir: dir, Salvage: true})
	if err != nil {
		return in, err
	}
	return in, f.Close()
}
