
 db52d1badbf904b44a28672ac8c58587
·˜àÏ€‰zann"approve-repair*acme22:photosB2020/Ã©tÃ©/ 100% â˜‚.jpgJ#acme/2/photos/a.jpg/content-corruptR	asked forZclib{"state":"awaiting"}j{"state":"repairing"}