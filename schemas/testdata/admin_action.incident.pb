
 0c2f7cfbc9e1c0b21bd5f3d8c26b8a54
·˜àÏ€‰zann"approve-repair*acme22:photosBa.jpgJacme/2/photos/a.jpg/replacedRlooked at itZclir 5d3ac10e2f0e1c6a8d1bb0b6c2f7e915z 9f86d081884c7d659a2feaa0c55ad015