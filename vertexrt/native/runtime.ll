; What every module has: memory of a call, arrays of NumPy, and what it calls of Python.

@no_memory = private constant [1 x i8] zeroinitializer
@ndarray = external global i8
@tuple_type = external global i8
@none = external global i8
@PyExc_AssertionError = external global ptr
@PyExc_ValueError = external global ptr
@read_only = private constant [41 x i8] c"an array that is written to is read-only\00"
declare noalias ptr @malloc(i64)
declare noalias ptr @calloc(i64, i64)
declare void @free(ptr)
declare ptr @memcpy(ptr, ptr, i64)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare double @PyFloat_AsDouble(ptr)
declare i32 @PyObject_IsTrue(ptr)
declare ptr @PyErr_Occurred()
declare ptr @PyErr_NoMemory()
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_FromUnsignedLongLong(i64)
declare ptr @PyFloat_FromDouble(double)
declare ptr @PyBool_FromLong(i64)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyArray_New(ptr, i32, ptr, i32, ptr, ptr, i32, i32, ptr)
declare float @llvm.fabs.f32(float)
declare double @llvm.fabs.f64(double)
declare double @llvm.sqrt.f64(double)

; A call has a list of the memory that it took, and why it failed. After what is taken lie the rest
; of the list, and where it begins.
define internal noalias ptr @new(ptr %call, i64 %bytes, i1 %zero) nounwind {
  %some = call i64 @llvm.smax.i64(i64 %bytes, i64 0)
  %more = add i64 %some, 15
  %round = and i64 %more, -16
  %total = add i64 %round, 16
  br i1 %zero, label %clear, label %plain
clear:
  %c = call ptr @calloc(i64 1, i64 %total)
  br label %taken
plain:
  %m = call ptr @malloc(i64 %total)
  br label %taken
taken:
  %p = phi ptr [ %c, %clear ], [ %m, %plain ]
  %bad = icmp eq ptr %p, null
  br i1 %bad, label %none, label %good
none:
  %why = getelementptr i8, ptr %call, i64 8
  store ptr @no_memory, ptr %why
  ret ptr null
good:
  %link = getelementptr i8, ptr %p, i64 %round
  %rest = load ptr, ptr %call
  store ptr %rest, ptr %link
  %at = getelementptr i8, ptr %link, i64 8
  store ptr %p, ptr %at
  store ptr %link, ptr %call
  ret ptr %p
}
declare i64 @llvm.smax.i64(i64, i64)

; Free what was taken since `until`, but not where one of `count` addresses lies.
define internal void @release(ptr %call, ptr %until, ptr %kept, i64 %count) nounwind {
entry:
  br label %head
head:
  %from = phi ptr [ %call, %entry ], [ %from, %unused ], [ %link, %used ]
  %link = load ptr, ptr %from
  %done = icmp eq ptr %link, %until
  br i1 %done, label %end, label %body
body:
  %at = getelementptr i8, ptr %link, i64 8
  %p = load ptr, ptr %at
  br label %look
look:
  %k = phi i64 [ 0, %body ], [ %next, %other ]
  %over = icmp eq i64 %k, %count
  br i1 %over, label %unused, label %compare
compare:
  %one_at = getelementptr ptr, ptr %kept, i64 %k
  %one = load ptr, ptr %one_at
  %after = icmp uge ptr %one, %p
  %before = icmp ule ptr %one, %link
  %inside = and i1 %after, %before
  br i1 %inside, label %used, label %other
other:
  %next = add i64 %k, 1
  br label %look
used:
  br label %head
unused:
  %rest = load ptr, ptr %link
  store ptr %rest, ptr %from
  call void @free(ptr %p)
  br label %head
end:
  ret void
}

; Make an array: of memory that this call took, else of a copy.
define internal ptr @array_of(ptr %call, ptr %data, i32 %ndim, ptr %extents, i32 %type, i64 %bytes) {
entry:
  br label %head
head:
  %from = phi ptr [ %call, %entry ], [ %link, %next ]
  %link = load ptr, ptr %from
  %over = icmp eq ptr %link, null
  br i1 %over, label %other, label %look
look:
  %at = getelementptr i8, ptr %link, i64 8
  %p = load ptr, ptr %at
  %same = icmp eq ptr %p, %data
  br i1 %same, label %mine, label %next
next:
  br label %head
mine:
  %a = call ptr @PyArray_New(ptr @ndarray, i32 %ndim, ptr %extents, i32 %type, ptr null, ptr %data, i32 0, i32 1281, ptr null)
  %none = icmp eq ptr %a, null
  br i1 %none, label %end, label %give
give:
  %rest = load ptr, ptr %link
  store ptr %rest, ptr %from
  %flags_at = getelementptr i8, ptr %a, i64 64
  %flags = load i32, ptr %flags_at
  %owns = or i32 %flags, 4
  store i32 %owns, ptr %flags_at
  br label %end
end:
  ret ptr %a
other:
  %b = call ptr @PyArray_New(ptr @ndarray, i32 %ndim, ptr %extents, i32 %type, ptr null, ptr null, i32 0, i32 0, ptr null)
  %bad = icmp eq ptr %b, null
  br i1 %bad, label %out, label %fill
fill:
  %to_at = getelementptr i8, ptr %b, i64 16
  %to = load ptr, ptr %to_at
  %unused = call ptr @memcpy(ptr %to, ptr %data, i64 %bytes)
  br label %out
out:
  ret ptr %b
}

define internal i1 @is_array(ptr %o, i32 %ndim, i32 %type, i32 %alike, i32 %wanted) nounwind {
  %class_at = getelementptr i8, ptr %o, i64 8
  %class = load ptr, ptr %class_at
  %exact = icmp eq ptr %class, @ndarray
  br i1 %exact, label %yes, label %maybe
maybe:
  %sub = call i32 @PyType_IsSubtype(ptr %class, ptr @ndarray)
  %is = icmp ne i32 %sub, 0
  br i1 %is, label %yes, label %no
yes:
  %ndim_at = getelementptr i8, ptr %o, i64 24
  %n = load i32, ptr %ndim_at
  %a = icmp eq i32 %n, %ndim
  %flags_at = getelementptr i8, ptr %o, i64 64
  %flags = load i32, ptr %flags_at
  %has = and i32 %flags, %wanted
  %b = icmp eq i32 %has, %wanted
  %descr_at = getelementptr i8, ptr %o, i64 56
  %descr = load ptr, ptr %descr_at
  %type_at = getelementptr i8, ptr %descr, i64 28
  %t = load i32, ptr %type_at
  %c1 = icmp eq i32 %t, %type
  %c2 = icmp eq i32 %t, %alike
  %c = or i1 %c1, %c2
  %order_at = getelementptr i8, ptr %descr, i64 26
  %order = load i8, ptr %order_at
  %d = icmp ne i8 %order, 62
  %ab = and i1 %a, %b
  %cd = and i1 %c, %d
  %all = and i1 %ab, %cd
  ret i1 %all
no:
  ret i1 false
}

define internal i1 @is_tuple(ptr %o, i64 %size) nounwind {
  %class_at = getelementptr i8, ptr %o, i64 8
  %class = load ptr, ptr %class_at
  %exact = icmp eq ptr %class, @tuple_type
  br i1 %exact, label %yes, label %maybe
maybe:
  %sub = call i32 @PyType_IsSubtype(ptr %class, ptr @tuple_type)
  %is = icmp ne i32 %sub, 0
  br i1 %is, label %yes, label %no
yes:
  %size_at = getelementptr i8, ptr %o, i64 16
  %n = load i64, ptr %size_at
  %right = icmp eq i64 %n, %size
  ret i1 %right
no:
  ret i1 false
}
