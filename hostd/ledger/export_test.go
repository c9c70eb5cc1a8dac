package ledger

// MaxWaiting is how many changes wait at most.
const MaxWaiting = maxWaiting

// Waiting counts the changes that the disk has not begun with.
func Waiting(l *Ledger) int {
	l.writer.mu.Lock()
	defer l.writer.mu.Unlock()
	return len(l.writer.waiting)
}
