package database

// Quota bounds what the archive of one database may have in the bucket.
type Quota struct {
	Disks   int // of its guest's disk, that many times; 0: any number of bytes
	Objects int // 0: any number
}

// MaxObjects is how many objects an archive may have: a segment every three seconds for
// a week, and more. Whoever lists it has all of them in memory.
const MaxObjects = 250_000

// of is how much that is for a guest's disk.
func (q Quota) of(diskMB int) size {
	return size{bytes: int64(q.Disks) * int64(diskMB) << 20, objects: q.Objects}
}

// size is how much there is in an archive, or may be.
type size struct {
	bytes   int64
	objects int
}

func (s size) plus(o size) size { return size{s.bytes + o.bytes, s.objects + o.objects} }

// within reports whether there is less than a quota.
func (s size) within(quota size) bool {
	return (quota.bytes == 0 || s.bytes < quota.bytes) && (quota.objects == 0 || s.objects < quota.objects)
}

// backupShare is the part of its quota that the WAL since a base backup may take: only
// behind a later one can older WAL be pruned. A base backup that this needs, and the WAL
// that makes it whole, may exceed the quota by as much, or an archive that is full would
// stay so.
const backupShare = 4

// part is what of a quota the WAL since a base backup may take.
func (s size) part() size { return size{s.bytes / backupShare, s.objects / backupShare} }

// exceeded is a quota, and what may come beyond it.
func (s size) exceeded() size { return s.plus(s.part()) }
