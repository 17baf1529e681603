
 496e86d1412ade4919305e4a810cb8fbcontent-corruptacme"2*photos22026-05:Ú˜àÏÀŸ«Bá˜àÏ€¤èJ
checkedñJ
passedðPZon the second reading