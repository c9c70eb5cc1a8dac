#include "textflag.h"

// func call(code unsafe.Pointer) uint32
TEXT ·call(SB), NOSPLIT, $8-12
	MOVQ code+0(FP), AX
	CALL AX
	MOVL AX, ret+8(FP)
	RET
